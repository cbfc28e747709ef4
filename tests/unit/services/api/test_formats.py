"""Rows in each format, read back by another reader."""

import csv
import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.api import formats

SCHEMA = pa.schema([("n", pa.int32()), ("x", pa.float64()), ("label", pa.string()), ("list", pa.list_(pa.float32()))])
VALUES = [
    {"n": 1, "x": math.inf, "label": 'say "hi",\nthere', "list": [0.5, math.nan]},
    {"n": None, "x": math.nan, "label": None, "list": None},
    {"n": 3, "x": -math.inf, "label": "é", "list": []},
    {"n": -4, "x": 0.1, "label": "", "list": [1.0]},
]


def encoded(format_: formats.Format, batches: int = 2, truncated: bool = False) -> bytes:
    whole = pa.RecordBatch.from_pylist(VALUES, schema=SCHEMA)
    size = len(VALUES) // batches if batches else 0
    parts = [whole.slice(start * size, size) for start in range(batches)]
    return b"".join(formats.encoded(format_, SCHEMA, iter(parts), lambda: truncated))


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)  # NaN equals itself here


def test_arrow_and_parquet_come_back_exactly():
    assert same(pa.ipc.open_stream(encoded("arrow")).read_all().to_pylist(), VALUES)
    assert same(pq.read_table(io.BytesIO(encoded("parquet"))).to_pylist(), VALUES)


def test_csv_is_read_back_by_another_reader():
    rows = list(csv.DictReader(io.StringIO(encoded("csv").decode(), newline="")))
    assert [row["label"] for row in rows] == ['say "hi",\nthere', "", "é", ""]
    assert [float(row["x"]) for row in rows if row["x"] != "NaN"] == [math.inf, -math.inf, 0.1]
    assert rows[0]["list"] == '[0.5, "NaN"]'
    assert '"0.1"' not in encoded("csv").decode()  # numbers are not texts to strict readers


def test_json_is_strict_and_spells_what_is_not_finite():
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    answer = json.loads(encoded("json", truncated=True), parse_constant=refuse)
    assert [row[1] for row in answer["rows"]] == ["Infinity", "NaN", "-Infinity", 0.1]
    assert answer["columns"][0] == {"name": "n", "type": "int32"}
    assert answer["truncated"] is True


@pytest.mark.parametrize("format_", ["json", "csv", "arrow", "parquet"])
def test_no_rows_are_a_whole_file_too(format_):
    data = encoded(format_, batches=0)
    readers = {
        "json": lambda: len(json.loads(data)["rows"]),
        "csv": lambda: len(list(csv.DictReader(io.StringIO(data.decode())))),
        "arrow": lambda: pa.ipc.open_stream(data).read_all().num_rows,
        "parquet": lambda: pq.read_table(io.BytesIO(data)).num_rows,
    }
    assert readers[format_]() == 0


def test_rows_leave_before_the_last_batch_is_there():
    def batches():
        yield pa.RecordBatch.from_pylist(VALUES, schema=SCHEMA)
        raise RuntimeError("the connection broke")

    for format_ in ("json", "csv", "arrow"):
        pieces = formats.encoded(format_, SCHEMA, batches())
        with pytest.raises(RuntimeError):  # and a break is not the end of a whole file
            while True:
                assert next(pieces) is not None
