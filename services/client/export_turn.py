"""``DIR.partial``, in which an export's files gather: marked as ours, and held by one export at a time.

The lock is on the marker, and the kernel drops it when its holder dies.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from services.contracts.errors import ErrorCode, KeyholeError

MARKER = ".keyhole-export"  # a folder without it may be anybody's: nothing in it is touched
_NOTE = "An unfinished export of Keyhole: the next one to the same folder goes on here.\n"
_QUIET_S = 1.0  # of waiting, before it is told
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # file systems without any, such as some of clusters


@contextmanager
def turn(partial: Path, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the folder; waits for another export to end. False if that one took the folder away: look anew.

    Raises KeyholeError (conflict) for a folder that is not ours.
    """
    _require_ours(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        partial.mkdir()
    try:
        marker = (partial / MARKER).open("a")
    except FileNotFoundError:  # another export has just given it its name
        yield False
        return
    with marker:
        _wait(marker, partial, say)
        if not _stands(marker, partial):
            yield False
            return
        if os.fstat(marker.fileno()).st_size == 0:
            marker.write(_NOTE)
            marker.flush()
        try:
            yield True
        finally:
            _discard_if_empty(marker, partial)


def _require_ours(partial: Path) -> None:
    try:
        found = None if partial.is_symlink() else list(os.scandir(partial))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        found = None
    ours = found is not None and (not found or MARKER in {entry.name for entry in found})
    if found is None or not ours or any(entry.is_dir(follow_symlinks=False) for entry in found):
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"{partial}, in which the files would gather, is there already and holds what is no unfinished export.",
            "Move or rename it if you need it, or delete it; or export to a folder of another name.",
        )


def _wait(marker: IO[str], partial: Path, say: Callable[[str], None]) -> None:
    begun, told = time.monotonic(), False
    while not _taken(marker):
        if not told and time.monotonic() > begun + _QUIET_S:
            say(f"Another export is writing {partial}; waiting for it to end.")
            told = True
        time.sleep(0.1)


def _taken(marker: IO[str]) -> bool:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _stands(marker: IO[str], partial: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(marker.fileno()), (partial / MARKER).stat())
    except FileNotFoundError:
        return False


def _discard_if_empty(marker: IO[str], partial: Path) -> None:
    """Take away a folder that holds nothing but the marker, as after a refusal."""
    with suppress(OSError):  # gone, or another export has begun in it
        if _stands(marker, partial) and [path.name for path in partial.iterdir()] == [MARKER]:
            (partial / MARKER).unlink()
            partial.rmdir()
