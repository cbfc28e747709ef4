"""Files of token ids: .npy arrays, and the .bin shards of FineWeb speed-run code; mapped, never read whole."""

from pathlib import Path

import numpy as np

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.untrusted import untrusted

BIN_MAGIC = 20240520  # first of 256 little-endian int32; then version 1 and the number of uint16 tokens
BIN_HEADER = 256 * 4  # bytes


def open_token_file(path: Path) -> np.ndarray:
    """A read-only memory map of a token file: 1-D, or 2-D with one sequence a row, of an integer dtype.

    Raises KeyholeError (dataset_invalid) if the file is cut short or holds something else.
    """
    with untrusted(str(path), ErrorCode.DATASET_INVALID, "It may be cut short; write it again."):
        if path.suffix.lower() == ".npy":
            return _open_npy(path)
        if path.suffix.lower() == ".bin":
            return _open_bin(path)
    raise _invalid(path, f"a token file ends in .npy or .bin, not {path.suffix!r}", "For text use file:PATH.")


def _open_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        if file.read(6) != b"\x93NUMPY":
            raise _invalid(path, "it does not start like a .npy file", "Write it with numpy.save.")
    try:
        # allow_pickle is False here: an array of objects is refused by numpy itself
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # its header is parsed as Python: SyntaxError, TokenError, TypeError and others
        raise _invalid(
            path, f"numpy cannot map it ({error})", "It may be cut short; write it with numpy.save."
        ) from error
    if array.dtype.kind not in "iu":
        raise _invalid(path, f"its dtype is {array.dtype}, not whole numbers", "Save token ids as int32 or uint16.")
    if array.ndim not in (1, 2) or array.size == 0:
        raise _invalid(path, f"its shape is {array.shape}", "Save one dimension of tokens, or two: sequence, position.")
    return array


def _open_bin(path: Path) -> np.ndarray:
    size = path.stat().st_size
    header = np.fromfile(path, dtype="<i4", count=256)
    if header.size < 256 or header[0] != BIN_MAGIC or header[1] != 1:
        found = header[:2].tolist()
        raise _invalid(
            path,
            f"its header starts with {found}, not [{BIN_MAGIC}, 1]",
            "Shards of FineWeb speed-run code have 256 int32 of header, then uint16 tokens; else save .npy.",
        )
    tokens = int(header[2])
    if tokens <= 0 or size != BIN_HEADER + 2 * tokens:
        raise _invalid(
            path,
            f"its header announces {tokens:,} tokens, {BIN_HEADER + 2 * tokens:,} bytes, where the file has {size:,}",
            "It may be cut short; copy it again.",
        )
    return np.memmap(path, dtype="<u2", mode="r", offset=BIN_HEADER, shape=(tokens,))


def _invalid(path: Path, reason: str, hint: str) -> KeyholeError:
    return KeyholeError(ErrorCode.DATASET_INVALID, f"{path} cannot be read: {reason}.", hint)
