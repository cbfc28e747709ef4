"""Binary COPY: what went in comes out, bit for bit, and what does not fit is refused before anything is sent."""

import numpy as np
import psycopg
import pytest

from db import copy, partitions
from services.contracts.errors import ErrorCode, KeyholeError
from tests.integration.db.conftest import TABLE, NewJob, gradient_scale_rows, stored_rows


def test_rows_come_back_equal_to_those_inserted_one_by_one(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows()
    copied, inserted = new_job(columns), new_job({name: values[:0] for name, values in columns.items()})
    for row in zip(*(columns[column.name].tolist() for column in TABLE.columns[1:]), strict=True):
        conn.execute(
            f"INSERT INTO keyhole.{TABLE.name} VALUES (%s, %s, %s, %s, %s, %s::float8::real, %s::float8::real)",
            (inserted, *row),
        )
    ours, theirs = stored_rows(conn, copied), stored_rows(conn, inserted)
    assert len(ours) == 60
    assert [row[1:] for row in ours] == [row[1:] for row in theirs]
    assert {row[0] for row in ours} == {copied}


def test_more_rows_than_a_chunk_arrive_in_order_and_complete(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows(sequences=40, queries=250)
    job_id = new_job(columns)
    rows = stored_rows(conn, job_id)
    assert len(rows) == 60_000
    np.testing.assert_array_equal(np.array([row[5] for row in rows], np.float32), columns["log10_d_a"])
    np.testing.assert_array_equal(np.array([row[4] for row in rows]), columns["query"])


def test_infinities_nan_and_negative_zero_survive(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows(sequences=1, layers=1, heads=1, queries=5)
    columns["log10_d_a"] = np.array([np.inf, -np.inf, np.nan, -0.0, np.float32(1e-45)], np.float32)
    stored = np.array([row[5] for row in stored_rows(conn, new_job(columns))], np.float32)
    np.testing.assert_array_equal(
        stored.view(np.uint32) & 0x7FFFFFFF, columns["log10_d_a"].view(np.uint32) & 0x7FFFFFFF
    )
    assert np.signbit(stored[3])


def test_strided_and_wider_integer_columns_are_written_by_value(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows()
    job_id = new_job(
        {name: values.astype(np.int64) if values.dtype.kind == "i" else values for name, values in columns.items()}
    )
    reversed_job = new_job({name: values[::-1] for name, values in columns.items()})
    assert [row[1:] for row in stored_rows(conn, job_id)] == [row[1:] for row in stored_rows(conn, reversed_job)]


@pytest.mark.parametrize(
    ("column", "values", "error", "words"),
    [
        ("layer", np.array([0, 40_000]), ValueError, "40000"),
        ("sequence", np.array([0, 2**31]), ValueError, "2147483648"),
        ("head", np.array([0.0, 1.0]), TypeError, "int2 cannot hold float64"),
        ("log10_d_a", np.array([0.0, 1.0]), TypeError, "float4 cannot hold float64"),
        ("log10_d_a", np.array([0, 1], np.int16), TypeError, "float4 cannot hold int16"),
        ("query", np.array([[0], [1]]), ValueError, "1-D"),
        ("query", np.array([0, 1, 2]), ValueError, "differ in length"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    conn: psycopg.Connection, new_job: NewJob, column: str, values: np.ndarray, error: type, words: str
) -> None:
    columns = gradient_scale_rows(sequences=1, layers=1, heads=1, queries=2)
    job_id = new_job(columns)
    with pytest.raises(error, match=words):
        copy.copy_rows(conn, TABLE, job_id, columns | {column: values})
    assert len(stored_rows(conn, job_id)) == 2


def test_missing_and_unknown_columns_are_named(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows()
    job_id = new_job(columns)
    columns["wrong"] = columns.pop("query")
    with pytest.raises(ValueError, match=r"missing \['query'\], unknown \['wrong'\]"):
        copy.copy_rows(conn, TABLE, job_id, columns)


def test_a_rolled_back_copy_leaves_no_rows(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows()
    job_id = new_job(columns)
    with pytest.raises(ZeroDivisionError), conn.transaction():
        copy.copy_rows(conn, TABLE, job_id, columns)
        raise ZeroDivisionError
    assert len(stored_rows(conn, job_id)) == 60


def test_a_job_without_storage_is_told_so(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    with pytest.raises(KeyholeError, match="no storage") as raised:
        copy.copy_rows(conn, TABLE, job_id, gradient_scale_rows())
    assert raised.value.code is ErrorCode.NOT_FOUND
    partitions.create(conn, TABLE.name, job_id)
    assert copy.copy_rows(conn, TABLE, job_id, gradient_scale_rows()) == 60
