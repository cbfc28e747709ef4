"""Checkpoints out of the database as folders on this worker: fetched once, checked, kept while there is room.

A folder is named after the identity of its model and holds the files that this identity is the digest of. Who uses one
holds its lock shared, who fetches or removes it holds the lock alone; the kernel lets go of the locks of the dead.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from db import stored_files
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.sources.file_identity import folder_sha256
from workers.lifecycle import Ledger

log = structlog.get_logger()
_UNUSED_S = 14 * 86_400  # after so long a folder is removed though there is room


@contextmanager
def opened(source: str, identity: str, settings: Settings) -> Iterator[Path | None]:
    """A folder with the checkpoint that ``checkpoint:ID`` names, which stays while it is used; None for other sources.

    Raises KeyholeError: model_not_found, model_changed (it is not the model that was submitted), checkpoint_damaged.
    """
    parsed = parse_model_source(source)
    if parsed.form != "checkpoint":
        yield None
        return
    cache = settings.cache / "checkpoints"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / identity.removeprefix("sha256:")
    while True:
        with _locked(folder, fcntl.LOCK_EX):
            if not folder.is_dir() or _identity(folder) != identity:
                shutil.rmtree(folder, ignore_errors=True)
                _fetch(int(parsed.name), source, identity, folder, settings)
            os.utime(folder)
        with _locked(folder, fcntl.LOCK_SH):
            if not folder.is_dir():  # removed in between to make room
                continue
            _make_room(cache, folder, settings.checkpoint_cache_bytes)
            yield folder
            return


def _fetch(checkpoint_id: int, source: str, identity: str, folder: Path, settings: Settings) -> None:
    assert settings.database_url is not None, "workers have a database"
    patience_s = settings.life.lease_s + settings.life.database_grace_s
    ledger = Ledger(settings.database_url.get_secret_value(), patience_s, "keyhole checkpoints")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        files = ledger.transact(lambda conn: stored_files.files_of(conn, checkpoint_id))
        if stored_files.identity_of(files) != identity:
            raise KeyholeError(
                ErrorCode.MODEL_CHANGED,
                f"{source} is now {stored_files.identity_of(files)}; submitted was {identity}.",
                "Its step was computed again, or the database is another one. Submit the job again.",
            )
        names = [file.name for file in files if file.name != stored_files.RESUME_FILE]
        ledger.transact(lambda conn: stored_files.download(conn, checkpoint_id, partial, names))
        partial.rename(folder)
    except KeyholeError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND,
            f"There is no {source} any more.",
            "It was deleted since the job was submitted. Name another one of the run: keyhole checkpoints",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        ledger.close()


def _identity(folder: Path) -> str:
    return f"sha256:{folder_sha256(folder, [path.name for path in folder.iterdir()])}"


def _make_room(cache: Path, keep: Path, limit_bytes: int) -> None:
    """Remove folders that nobody uses: those unused for long, and the longest unused while all take too much."""
    used = {folder: each for folder in cache.iterdir() if (each := _use(folder)) is not None}
    total = sum(size for _, size in used.values())
    for folder, (mtime, size) in sorted(used.items(), key=lambda each: each[1][0]):
        if folder == keep or (total <= limit_bytes and time.time() - mtime < _UNUSED_S):
            continue
        try:
            with _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # somebody loads from it
            continue
        total -= size
        log.info("checkpoint removed from the cache", folder=folder.name, bytes=size)


def _use(folder: Path) -> tuple[float, int] | None:
    """When it was last used (s since the epoch) and its bytes; None for no folder, or one being removed."""
    try:
        if not folder.is_dir():
            return None
        return folder.stat().st_mtime, sum(path.stat().st_size for path in folder.iterdir())
    except FileNotFoundError:
        return None


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """The lock of a folder; its file is empty and stays."""
    name = folder.name.removesuffix(".partial")
    lock = os.open(folder.with_name(f"{name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)
