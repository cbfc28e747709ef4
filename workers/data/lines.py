"""Lines of UTF-8 text out of a byte stream, with errors that say where."""

from collections.abc import Iterator
from typing import BinaryIO

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.text_files import vet_block

LINE_LIMIT = 16 << 20  # bytes; whole books are shorter
_BOM = b"\xef\xbb\xbf"


def text_lines(name: str, stream: BinaryIO) -> Iterator[tuple[int, str]]:
    """(line number from 1, text with its line end); raises KeyholeError (dataset_invalid) with line and byte."""
    offset = 0
    number = 0
    while line := stream.readline(LINE_LIMIT + 1):
        number += 1
        if len(line) > LINE_LIMIT:
            raise KeyholeError(
                ErrorCode.DATASET_INVALID,
                f"Line {number:,} of {name}, from byte {offset:,}, is longer than {LINE_LIMIT:,} bytes.",
                "Break long lines, or save one document per line or row.",
            )
        if number == 1:
            vet_block(name, line)
        if b"\x00" in line:
            raise KeyholeError(
                ErrorCode.DATASET_INVALID,
                f"{name} is binary: a zero byte at byte {offset + line.index(0):,}, in line {number:,}.",
                "Only UTF-8 text is read.",
            )
        start = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
        try:
            text = line[start:].decode("utf-8")
        except UnicodeDecodeError as error:
            at = offset + start + error.start
            raise KeyholeError(
                ErrorCode.DATASET_INVALID,
                f"{name} is not UTF-8: byte 0x{line[start + error.start]:02x} at byte {at:,}, in line {number:,}.",
                "Convert it, e.g. iconv -f WINDOWS-1252 -t UTF-8.",
            ) from error
        offset += len(line)
        yield number, text
