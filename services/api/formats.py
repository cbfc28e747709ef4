"""Rows in the formats the API offers, written batch by batch: Arrow IPC stream, CSV, JSON, Parquet."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

Format = Literal["json", "csv", "arrow", "parquet"]
MEDIA_TYPES: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}

_SPELLED = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def encoded(
    format_: Format,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    truncated: Callable[[], bool] = lambda: False,
) -> Iterator[bytes]:
    """The rows as pieces of a file. ``truncated`` is asked at the end; JSON tells it, the others cannot.

    CSV and JSON write numbers that are not finite as NaN, Infinity and -Infinity, in JSON as texts, as PostgreSQL does.
    """
    if format_ == "json":
        return _json(schema, batches, truncated)
    if format_ == "csv":
        return _csv(schema, batches)
    return _binary(format_, schema, batches)


def _binary(format_: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    sink = _Sink()
    with _writer(format_, sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.drained()
    yield sink.drained()


def _writer(format_: str, sink: "_Sink", schema: pa.Schema) -> Any:
    if format_ == "arrow":
        return pa.ipc.new_stream(sink, schema)
    return pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd")


def _csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """With the standard library's writer: pyarrow's quotes every text, and so the spelled-out infinities' columns."""
    piece = io.StringIO(newline="")
    writer = csv.writer(piece, lineterminator="\n")
    writer.writerow(schema.names)
    for batch in batches:
        writer.writerows(zip(*(_texts(column) for column in batch.columns), strict=True))
        yield piece.getvalue().encode()
        piece.seek(0)
        piece.truncate()
    yield piece.getvalue().encode()


def _texts(column: pa.Array) -> list[str | None]:
    """The values as CSV has them: lists as JSON, numbers that are not finite spelled out, NULL as nothing."""
    if pa.types.is_list(column.type):
        return [None if each is None else _dumped(each) for each in column.to_pylist()]
    texts = column.cast(pa.string()).to_pylist()
    if pa.types.is_floating(column.type):
        return [_SPELLED.get(text, text) for text in texts]
    return texts


def _json(schema: pa.Schema, batches: Iterable[pa.RecordBatch], truncated: Callable[[], bool]) -> Iterator[bytes]:
    """``{"columns": [{"name", "type"}…], "rows": [[…]…], "truncated": …}``; names may repeat, so rows are lists."""
    columns = [{"name": field.name, "type": str(field.type)} for field in schema]
    yield f'{{"columns": {json.dumps(columns)}, "rows": ['.encode()
    separator = ""
    for batch in batches:
        values = [column.to_pylist() for column in batch.columns]
        rows = [list(row) for row in zip(*values, strict=True)] if values else [[] for _ in range(batch.num_rows)]
        for row in rows:
            yield f"{separator}{_dumped(row)}".encode()
            separator = ",\n"
    yield f'], "truncated": {json.dumps(truncated())}}}\n'.encode()


def _dumped(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value


class _Sink:
    """A file that is only written to, and emptied as it fills."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        self._position += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The pieces are drained after the writer has closed the file."""

    def drained(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken
