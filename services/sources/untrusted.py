"""The boundary around readers of users' files: what they raise on a damaged file becomes a refusal that names it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from services.contracts.errors import ErrorCode, KeyholeError

# what a reader of damaged bytes is known to raise; anything else may be a defect of ours, and its traceback is logged
_KNOWN = (OSError, ValueError, EOFError, RecursionError)
log = logging.getLogger(__name__)


@contextmanager
def untrusted(what: str, code: ErrorCode, hint: str) -> Iterator[None]:
    """Raise KeyholeError(code) for whatever the block raises, but for a KeyholeError and for lack of memory."""
    try:
        yield
    except (KeyholeError, MemoryError):
        raise
    except Exception as error:
        if not isinstance(error, _KNOWN):
            log.warning("%s made its reader fail; it is refused.", what, exc_info=True)
        raise KeyholeError(code, f"{what} cannot be read: {type(error).__name__}: {error}.", hint) from error
