"""How a checkpoint's files are cut into pieces: safetensors at the tensors' boundaries, so that equal ones are found.

The header of a safetensors file is a piece, each tensor another one, and whatever is larger than PIECE_BYTES is cut
further. Format: 8 bytes little-endian length, a JSON object {tensor: {…, data_offsets: [start, stop]}}, the tensors.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 4 << 20  # measured from 1 to 16 MiB within noise; more would stay in memory at a time
BATCH_BYTES = 16 << 20  # of pieces that are handled together
HASHING = 2  # threads: one SHA-256 of the pieces, one of the whole file


@dataclass(frozen=True)
class Piece:
    """Bytes of one piece as they were read, and their SHA-256."""

    sha256: bytes
    content: bytes


class CutFile:
    """A file read in batches of pieces; once they are exhausted its size and SHA-256 are known."""

    def __init__(self, path: Path, pool: Executor) -> None:
        self._path, self._pool = path, pool
        self._whole = hashlib.sha256()
        self.size = 0

    def batches(self) -> Iterator[list[Piece]]:
        """Pieces in their order, hashed side by side."""
        with self._path.open("rb") as file:
            for sizes in batched([size for _, size in cuts(self._path)]):
                contents = [file.read(size) for size in sizes]
                whole = self._pool.submit(_update, self._whole, contents)
                pieces = [
                    Piece(sha256, content)
                    for sha256, content in zip(self._pool.map(sha256_of, contents), contents, strict=True)
                ]
                whole.result()
                self.size += sum(map(len, contents))
                yield pieces

    @property
    def sha256(self) -> bytes:
        return self._whole.digest()


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


def batched(sizes: Sequence[int]) -> Iterator[list[int]]:
    """The sizes in their order, in groups of at most BATCH_BYTES; one that is larger is a group of its own."""
    batch: list[int] = []
    total = 0
    for size in sizes:
        if batch and total + size > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(size)
        total += size
    if batch:
        yield batch


def sha256_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _update(whole: "hashlib._Hash", contents: Sequence[bytes]) -> None:
    for content in contents:
        whole.update(content)


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


_HEADER_LIMIT = 100_000_000  # bytes, the limit of the safetensors library
