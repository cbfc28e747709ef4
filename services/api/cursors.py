"""Opaque cursors of the listings: where the next page begins, in a form clients pass back and do not build."""

import base64
import binascii

from services.contracts.errors import ErrorCode, KeyholeError


def encode(before_id: int) -> str:
    return base64.urlsafe_b64encode(f"job<{before_id}".encode()).decode().rstrip("=")


def decode(cursor: str) -> int:
    """The id below which the page begins; raises KeyholeError (invalid_request)."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    prefix, _, number = text.partition("<")
    if prefix != "job" or not number.isdigit() or len(number) > 10:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{cursor[:80]!r} is not a cursor.",
            "Pass the `next` of the page before, unchanged, or none.",
        )
    return min(int(number), 2**31 - 1)
