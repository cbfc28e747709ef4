"""Pieces as objects of a store outside the database, by fsspec: ``s3://bucket/folder``, ``file:///folder``.

Credentials come from the environment, as each of fsspec's drivers documents, never from the address.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from services.contracts.errors import ErrorCode, KeyholeError


def require_usable(store: str) -> None:
    """Raise KeyholeError (unavailable) that says why a store of this address cannot be used."""
    _opened(store)


def write(store: str, contents: Mapping[bytes, bytes]) -> None:
    """Write each object whole or not at all."""
    if not contents:
        return
    files, root = _opened(store)
    with _told(store):
        if _is_local(files):
            for sha256, content in contents.items():
                _write_local(Path(_path(root, sha256)), content)
            return
        files.pipe({_path(root, sha256): content for sha256, content in contents.items()})


def read(store: str, sha256: bytes) -> bytes | None:
    """The object's bytes; None where there is no such object."""
    files, root = _opened(store)
    with _told(store):
        try:
            return files.cat_file(_path(root, sha256))
        except FileNotFoundError:
            return None


def remove(store: str, sha256s: Sequence[bytes]) -> None:
    """Remove the objects that there are."""
    files, root = _opened(store)
    for sha256 in sha256s:
        with _told(store):
            try:
                files.rm_file(_path(root, sha256))
            except FileNotFoundError:
                continue


@lru_cache(maxsize=8)
def _opened(store: str) -> tuple[Any, str]:
    protocol = store.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(store)
    except (ImportError, ValueError) as error:
        advice = known_implementations.get(protocol, {}).get("err", "")
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The checkpoint store {store} cannot be opened: {error}.",
            f"{advice}. It is needed by API, workers and reconciler."
            if advice
            else "KEYHOLE_CHECKPOINT_STORE is an address of fsspec, such as s3://bucket/folder or file:///folder.",
        ) from error


@contextmanager
def _told(store: str) -> Iterator[None]:
    """What drivers raise has no common type; it becomes a KeyholeError (unavailable) that names the store."""
    try:
        yield
    except (KeyholeError, MemoryError):
        raise
    except Exception as error:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The checkpoint store {store} does not answer as it should: {type(error).__name__}: {error}.",
            "Check KEYHOLE_CHECKPOINT_STORE, and the credentials in the environment of API, workers and reconciler.",
        ) from error


def _is_local(files: Any) -> bool:
    return "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol)


def _path(root: str, sha256: bytes) -> str:
    name = sha256.hex()
    return f"{root.rstrip('/')}/{name[:2]}/{name}"


def _write_local(path: Path, content: bytes) -> None:
    """Under its name only when it is whole and on the disk: fsspec's own driver does not flush."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
