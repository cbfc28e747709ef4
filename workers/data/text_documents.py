"""Documents of text files: a .txt is one, a .jsonl has one a line, a .parquet one a row."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.text_files import Member, members, unpacking
from workers.data.lines import text_lines
from workers.data.pieces import Piece, document_pieces

# JSON can escape half of an emoji, as where a crawler cut a text; UTF-8 and tokenizers cannot hold it
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
_ROWS = 256  # of a Parquet file, read at once


def file_pieces(path: Path, field: str) -> Iterator[Piece]:
    """The documents of a file in order, as pieces; ``field`` is where .jsonl and .parquet keep the text."""
    document = 0
    with unpacking(path):
        for member in members(path):
            if member.format == "txt":
                lines = text_lines(member.name, member.stream)
                yield from document_pieces(document, member.name, (text for _, text in lines))
                document += 1
                continue
            for name, text in _json_texts(member, field) if member.format == "jsonl" else _rows(member, field):
                yield from document_pieces(document, name, (text,))
                document += 1


def _json_texts(member: Member, field: str) -> Iterator[tuple[str, str]]:
    for number, line in text_lines(member.name, member.stream):
        if not line.strip():
            continue
        where = f"Line {number:,} of {member.name}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise KeyholeError(
                ErrorCode.DATASET_INVALID, f"{where} is not JSON: {error}.", "A .jsonl holds one JSON object a line."
            ) from error
        if not isinstance(record, dict):
            raise KeyholeError(
                ErrorCode.DATASET_INVALID,
                f"{where} holds a {type(record).__name__}, not an object.",
                'A .jsonl holds one JSON object a line, such as {"text": "…"}.',
            )
        yield f"{member.name}: line {number}", text_field(record, field, where)


def text_field(record: dict[str, Any], field: str, where: str) -> str:
    """The text of a record; null counts as empty, half of a surrogate pair reads as U+FFFD.

    Raises KeyholeError with the fields there are.
    """
    value = record.get(field, record)  # the record itself is never a valid value
    if value is record:
        raise _without_field(where, field, list(record))
    if value is None:
        return ""
    if not isinstance(value, str):
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{where} has a {type(value).__name__} in the field {field!r}, not text.",
            _field_hint(list(record)),
        )
    return _HALF_A_PAIR.sub("\ufffd", value)


def _rows(member: Member, field: str) -> Iterator[tuple[str, str]]:
    with _seekable(member.stream) as stream:
        try:
            file = pq.ParquetFile(stream)
            names = file.schema_arrow.names
            if field not in names:
                raise _without_field(member.name, field, names)
            number = 0
            for batch in file.iter_batches(_ROWS, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield f"{member.name}: row {number}", text_field({field: value}, field, f"Row {number:,}")
                    number += 1
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise KeyholeError(
                ErrorCode.DATASET_INVALID,
                f"{member.name} is no sound Parquet file: {error}.",
                "It may be cut short; copy it again.",
            ) from error


@contextmanager
def _seekable(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Parquet is read from its end: what is packed is unpacked to a temporary file first."""
    if stream.seekable():
        yield stream
        return
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.seek(0)
        yield file


def _without_field(where: str, field: str, names: list[str]) -> KeyholeError:
    return KeyholeError(ErrorCode.DATASET_INVALID, f"{where} has no field {field!r}.", _field_hint(names))


def _field_hint(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:20])) or "none"
    return f"Fields there: {shown}. Choose one with ?field=NAME."
