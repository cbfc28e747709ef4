"""How a checkpoint's files are cut into pieces: safetensors at the tensors' boundaries, so that equal ones are found.

The header of a safetensors file is a piece, each tensor another one, and whatever is larger than PIECE_BYTES is cut
further. Format: 8 bytes little-endian length, a JSON object {tensor: {…, data_offsets: [start, stop]}}, the tensors.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 4 << 20  # see benchmarks/checkpoints.py
_HEADER_LIMIT = 100_000_000  # bytes, the limit of the safetensors library


@dataclass(frozen=True)
class Piece:
    """Bytes of one piece as they were read, and their SHA-256."""

    sha256: bytes
    content: bytes


def cuts(path: Path) -> list[tuple[int, int]]:
    """(first byte, number of bytes) of each piece, in order and without gaps; none for an empty file."""
    size = path.stat().st_size
    starts = {0, *_tensor_starts(path, size)} if path.suffix == ".safetensors" else {0}
    ordered = [*sorted(start for start in starts if start < size), size]
    return [
        (first, min(PIECE_BYTES, stop - first))
        for start, stop in itertools.pairwise(ordered)
        for first in range(start, stop, PIECE_BYTES)
    ]


def pieces(path: Path) -> Iterator[Piece]:
    """The file's pieces one by one."""
    with path.open("rb") as file:
        for _, size in cuts(path):
            content = file.read(size)
            yield Piece(hashlib.sha256(content).digest(), content)


def _tensor_starts(path: Path, size: int) -> Iterator[int]:
    """Where tensors begin; nothing for a file that is not what its name says: it is then cut by size alone."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _HEADER_LIMIT):
            return
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return
    if not isinstance(header, dict):
        return
    for name, entry in header.items():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) and name != "__metadata__" else None
        if isinstance(offsets, list) and offsets and type(offsets[0]) is int and offsets[0] >= 0:
            yield 8 + length + offsets[0]
