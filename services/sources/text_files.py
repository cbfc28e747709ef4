"""Text files as they lie on disk: .txt, .jsonl or .parquet, plain, compressed or in a zip archive.

Members are streamed and never unpacked to disk by name; a stream that unpacks to far more than its size is refused.
"""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import zstandard

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.untrusted import untrusted
from services.sources.zstandard_frames import require_whole

FORMATS = {".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst", ".zip": "zip"}
FIRST_BLOCK = 8192  # bytes looked at when a file is submitted
# English text packs 3 to 5 times, logs up to 100; a bomb of zeros 1,000 times and more
EXPANSION_LIMIT = 250
EXPANSION_FLOOR = 256 << 20  # bytes that any stream may unpack to

_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, zstandard.ZstdError, NotImplementedError)
_DAMAGED_HINT = "Copy it again and test the archive."


@dataclass(frozen=True)
class TextFormat:
    format: str | None  # txt, jsonl or parquet; None for a zip archive, whose members say
    compression: str | None

    def __str__(self) -> str:
        return ".".join(part for part in (self.format, self.compression) if part)


@dataclass(frozen=True)
class Member:
    """One text file: the file itself, or a member of an archive."""

    name: str
    format: str
    stream: BinaryIO


def text_format(path: Path) -> TextFormat:
    """What the name's suffixes say; raises KeyholeError (dataset_invalid) for others."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression == "zip":
        return TextFormat(None, "zip")
    name = suffixes[-2:-1] if compression else suffixes[-1:]
    if not name or name[0] not in FORMATS:
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{path.name!r} is of no readable kind.",
            f"Readable are {', '.join(FORMATS)}, also with {', '.join(COMPRESSIONS)} behind; token ids by tokens:PATH.",
        )
    return TextFormat(FORMATS[name[0]], compression)


def vet_text_file(path: Path) -> None:
    """Cheap checks at submission: kind, archive, first block; raises KeyholeError (dataset_invalid)."""
    with unpacking(path):
        for member in members(path):
            if member.format == "parquet" and text_format(path).compression is None:
                _vet_parquet(path)
            elif member.format != "parquet":
                vet_block(member.name, member.stream.read(FIRST_BLOCK))
            return


def vet_block(name: str, block: bytes) -> None:
    """Refuse what is not UTF-8 text by its first bytes."""
    if block.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _invalid(name, "it is UTF-16", "Save it as UTF-8.")
    if b"\x00" in block:
        raise _invalid(name, f"it is binary (a zero byte at byte {block.index(0):,})", "Only UTF-8 text is read.")


def members(path: Path) -> Iterator[Member]:
    """The text files in ``path``, one after the other; a stream is valid until the next is asked for."""
    form = text_format(path)
    if form.format is None:
        yield from _archive_members(path)
        return
    with path.open("rb") as raw:
        stream = _decompressed(raw, form.compression)
        if stream is raw:
            yield Member(path.name, form.format, raw)
        else:
            yield Member(path.name, form.format, _bounded(stream, path.name, path.stat().st_size))


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Turn what decompressors raise on damaged input into a KeyholeError that names the file."""
    with untrusted(path.name, ErrorCode.DATASET_INVALID, _DAMAGED_HINT):
        try:
            yield
        except _DAMAGED as error:
            raise _invalid(path.name, f"it is damaged or cut short ({error})", _DAMAGED_HINT) from error
        except RuntimeError as error:  # what zipfile raises for an encrypted member
            raise _invalid(path.name, str(error), "Pack it again without a password.") from error


def _decompressed(raw: BinaryIO, compression: str | None) -> BinaryIO:
    if compression == "gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if compression == "bz2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if compression == "xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if compression == "zst":
        require_whole(raw)
        return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return raw


def _archive_members(path: Path) -> Iterator[Member]:
    """Readable members in order of name; others, such as a README, are passed over."""
    with zipfile.ZipFile(path) as archive:
        readable = sorted(
            (info for info in archive.infolist() if _readable(info)),
            key=lambda info: (info.filename, info.header_offset),
        )
        if not readable:
            raise _invalid(path.name, f"no member ends in {', '.join(FORMATS)}", "Pack text, JSON lines or Parquet.")
        for info in readable:
            with archive.open(info) as stream:
                name = f"{path.name}/{info.filename}"
                bounded = _bounded(cast(BinaryIO, stream), name, info.compress_size)
                yield Member(name, FORMATS[PurePosixPath(info.filename).suffix.lower()], bounded)


def _readable(info: zipfile.ZipInfo) -> bool:
    name = PurePosixPath(info.filename)
    hidden = name.name.startswith(".") or "__MACOSX" in name.parts
    return not info.is_dir() and not hidden and name.suffix.lower() in FORMATS and info.file_size > 0


def _bounded(stream: BinaryIO, name: str, packed: int) -> BinaryIO:
    limit = max(EXPANSION_FLOOR, EXPANSION_LIMIT * packed)
    return cast(BinaryIO, io.BufferedReader(_Bounded(stream, name, packed, limit), 1 << 16))


class _Bounded(io.RawIOBase):
    """A stream that refuses to unpack further than its limit."""

    def __init__(self, stream: BinaryIO, name: str, packed: int, limit: int) -> None:
        self._stream, self._name, self._packed, self._left = stream, name, packed, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[override]  # the buffer protocol has no name before Python 3.12
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise _invalid(
                self._name,
                f"it unpacks to over {EXPANSION_LIMIT} times its {self._packed:,} bytes",
                "That is no text; if it is, pack it less or not at all.",
            )
        buffer[: len(data)] = data
        return len(data)


def _vet_parquet(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(-4, io.SEEK_END)
        tail = file.read(4)
    if head != b"PAR1" or tail != b"PAR1":
        raise _invalid(
            path.name, "it does not start and end like a Parquet file", "It may be cut short; copy it again."
        )


def _invalid(name: str, reason: str, hint: str) -> KeyholeError:
    return KeyholeError(ErrorCode.DATASET_INVALID, f"{name} cannot be read: {reason}.", hint)
