"""What is told and stored of an error that ended a job's attempt."""

import errno
import socket
import traceback
from dataclasses import dataclass
from typing import Self

import psycopg

from services.contracts.errors import ErrorCode, KeyholeError

_FREE_AND_RETRY = "Free some, then: keyhole retry ID. Shards that are done are not computed again."


@dataclass(frozen=True)
class Failure:
    code: ErrorCode
    message: str
    hint: str
    traceback: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        code, message, hint = (
            (error.code, error.message, error.hint) if isinstance(error, KeyholeError) else classified(error)
        )
        return cls(code, message, hint, "".join(traceback.format_exception(error)))


def classified(error: Exception) -> tuple[ErrorCode, str, str]:
    """Code, message and hint of an error that is not a KeyholeError."""
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, psycopg.errors.DiskFull):
        return ErrorCode.DISK_FULL, f"No space is left for the database. {text}", _FREE_AND_RETRY
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ErrorCode.DISK_FULL, f"No space is left on the worker {socket.gethostname()}. {text}", _FREE_AND_RETRY
    if isinstance(error, psycopg.Error):
        return ErrorCode.DATABASE, text, "The job is tried again; look whether the database is up."
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text:
        return ErrorCode.OUT_OF_MEMORY, text, "Lower batch or length, or use dtype bfloat16, and submit again."
    return ErrorCode.UNEXPECTED, text, "This looks like a defect; the traceback says where."
