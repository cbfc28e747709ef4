"""One starter or stopper at a time in a KEYHOLE_HOME. The kernel drops the lock when its holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError

WAIT_LIMIT_S = 600.0


@contextmanager
def home_lock(home: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``home``; waits for another `keyhole up` or `keyhole down` to finish."""
    descriptor = os.open(home / "stack.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + WAIT_LIMIT_S
        told = False
        while not _taken(descriptor):
            if not told:
                say(f"another keyhole command is starting or stopping the stack in {home}; waiting for it")
                told = True
            if time.monotonic() > deadline:
                raise KeyholeError(
                    ErrorCode.UNAVAILABLE,
                    f"Another keyhole command has held {home / 'stack.lock'} for {WAIT_LIMIT_S:.0f} s.",
                    "See which with: fuser -v " + str(home / "stack.lock"),
                )
            time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
