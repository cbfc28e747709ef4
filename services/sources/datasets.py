"""A dataset source resolved to its content, with the refusals that need no tokenizer made right away."""

import fnmatch
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import DatasetSource, parse_dataset_source
from services.sources import builtin, hub
from services.sources.file_identity import file_sha256
from services.sources.roots import data_path, pinned_source
from services.sources.text_files import text_format, vet_text_file
from services.sources.token_files import open_token_file
from services.sources.untrusted import untrusted

_MOST_FILES = 512  # of a pattern: each is mapped, and a process may often have no more than 1,024 open


@dataclass(frozen=True)
class ResolvedDataset:
    source: str  # normalised; a hub data set names its commit
    identity: str  # pins the content: commit, or SHA-256 of the bytes, with the options that select from it
    file: Path | None = None  # file: and tokens: only; the first of a pattern's
    more_files: tuple[Path, ...] = ()  # the others of a pattern, in order

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self.file is None else (self.file, *self.more_files)


def resolve_dataset(text: str, settings: Settings) -> ResolvedDataset:
    """Resolve a dataset source and refuse what can be seen without reading it all.

    Raises KeyholeError: invalid_source, dataset_not_found, dataset_invalid or unavailable.
    """
    source = parse_dataset_source(text)
    if source.form == "builtin":
        return ResolvedDataset(str(source), builtin.dataset_identity(source.name))
    if source.form == "hf":
        commit = hub.dataset_commit(source.name, source.revision)
        pinned = str(source.model_copy(update={"revision": commit}))
        return ResolvedDataset(pinned, pinned)
    return _file(source, settings)


def _pattern(source: DatasetSource, path: Path, settings: Settings) -> ResolvedDataset:
    """Token files of one folder as one data set, such as the shards of FineWeb."""
    if "*" in str(path.parent):
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE, f"{path.parent} has a * in it.", "A pattern may stand in the last part alone."
        )
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    names = fnmatch.filter(there, path.name.replace("[", "[[]"))
    if not names:
        raise KeyholeError(
            ErrorCode.DATASET_NOT_FOUND,
            f"No file in {path.parent} matches {path.name}.",
            "Workers must see them under the same path.",
        )
    if len(names) > _MOST_FILES:
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{len(names):,} files match {path.name}; {_MOST_FILES:,} are read.",
            "Name fewer, or join them.",
        )
    one_by_one = [
        _file(source.model_copy(update={"name": str(path.parent / name)}), settings)
        for name in sorted(names, key=_by_number)
    ]
    digest = hashlib.sha256("".join(f"{one.identity}\n" for one in one_by_one).encode()).hexdigest()
    pinned = pinned_source(source, path)
    first, *others = [one.file for one in one_by_one if one.file is not None]
    return ResolvedDataset(str(pinned), f"tokens:sha256:{digest}:files={len(one_by_one)}", first, tuple(others))


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Sorts shard_2 before shard_10."""
    return [
        (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
    ]


def _file(source: DatasetSource, settings: Settings) -> ResolvedDataset:
    path = data_path(source.name, settings)
    if source.form == "tokens" and "*" in path.name and not path.exists():
        return _pattern(source, path, settings)
    if not path.exists():
        raise KeyholeError(
            ErrorCode.DATASET_NOT_FOUND, f"There is no file {path}.", "Workers must see it under the same path."
        )
    if not path.is_file():
        raise KeyholeError(ErrorCode.DATASET_INVALID, f"{path} is not a file.", "Name one file; several can be zipped.")
    if path.stat().st_size == 0:
        raise KeyholeError(ErrorCode.DATASET_INVALID, f"{path} is empty.", "Check what wrote it.")
    pinned = pinned_source(source, path)
    if source.form == "tokens":
        open_token_file(path)
        read_as = path.suffix.lower()[1:]
    else:
        vet_text_file(path)
        read_as = f"{text_format(path)}:field={source.field}"
    with untrusted(str(path), ErrorCode.DATASET_INVALID, "Check that the API and the workers may read it."):
        sha256 = file_sha256(path)
    return ResolvedDataset(str(pinned), f"{source.form}:sha256:{sha256}:{read_as}", path)
