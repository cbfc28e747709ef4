"""SHA-256 of files, remembered for as long as a file's stat does not change."""

import hashlib
from functools import lru_cache
from pathlib import Path


def stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is written or replaced: size, times, inode, device."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in a stream; cached by path and stamp within the process."""
    return _file_sha256(path, stamp(path))


@lru_cache(maxsize=1024)
def _file_sha256(path: Path, _stamp: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path, names: list[str]) -> str:
    """One SHA-256 over the names and contents of some files of a folder."""
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{len(name)}:{name}:{file_sha256(folder / name)}\n".encode())
    return digest.hexdigest()
