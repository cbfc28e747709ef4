"""The header of a safetensors file, checked against the file's size before any library maps it.

Format: 8 bytes little-endian length, a JSON object {tensor: {dtype, shape, data_offsets}}, the tensors without gaps.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.json_file import parse_json_object

HEADER_LIMIT = 100_000_000  # bytes, the limit of the safetensors library
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_INTEGERS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8}  # buffers, masks
_BYTES = _FLOATS | _INTEGERS


@dataclass(frozen=True)
class TensorEntry:
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a safetensors file; raises KeyholeError (model_refused) if the file is not sound."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > size - 8:
            raise _refused(path, f"its header would end at byte {8 + length:,} of {size:,}")
        if length > HEADER_LIMIT:
            raise _refused(path, f"its header has {length:,} bytes, more than {HEADER_LIMIT:,}")
        header = parse_json_object(file.read(length), f"The header of {path.name}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _refused(path, "its __metadata__ is not a map of strings")
    if not header:
        raise _refused(path, "it holds no tensor")
    entries, ranges = {}, []
    for name, entry in header.items():
        entries[name], start, stop = _entry(path, name, entry)
        ranges.append((start, stop, name))
    position = 0
    for start, stop, name in sorted(ranges):
        if start != position:
            raise _refused(path, f"tensor {name!r} starts at byte {start:,} of the data where {position:,} was due")
        position = stop
    if position != size - 8 - length:
        raise _refused(path, f"its tensors take {position:,} bytes where the file has {size - 8 - length:,}")
    return entries


def _entry(path: Path, name: str, entry: Any) -> tuple[TensorEntry, int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _refused(path, f"the entry of tensor {name!r} is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BYTES:
        raise _refused(path, f"tensor {name!r} has dtype {dtype!r}; readable are {', '.join(_BYTES)}")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise _refused(path, f"tensor {name!r} has shape {shape!r} and offsets {offsets!r}")
    start, stop = offsets
    if stop - start != math.prod(shape) * _BYTES[dtype]:
        raise _refused(path, f"tensor {name!r} of shape {shape} and dtype {dtype} has {stop - start:,} bytes")
    return TensorEntry(dtype, tuple(shape)), start, stop


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 50 for item in value)


def _refused(path: Path, reason: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_REFUSED,
        f"{path.name} is not a sound safetensors file: {reason}.",
        "Copy or save it again; it may be cut short.",
    )
