"""Arrow batches of a job's rows: every row, every bit, in the order of storage."""

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from db import copy, export, merging, partitions
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from tests.integration.db.conftest import TABLE, NewJob, gradient_scale_rows, stored_rows


def _table(conn: psycopg.Connection, job_id: int, **chosen: object) -> pa.Table:
    batches = export.table_batches(conn, TABLE, job_id, **chosen)  # type: ignore[arg-type]  # passed on as they are
    return pa.Table.from_batches(batches, export.schema(TABLE, chosen.get("columns")))  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", [1, 3, 10_000])
def test_batches_together_are_the_rows_that_were_copied(
    conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr(export, "_PAGES", pages)
    columns = gradient_scale_rows(sequences=6, queries=40)
    columns["log10_d_a"][::9] = np.inf
    columns["log10_d_c"][::11] = np.nan
    new_job(gradient_scale_rows(seed=3))
    table = _table(conn, new_job(columns))
    assert table.num_rows == len(columns["layer"])
    for name, values in columns.items():
        np.testing.assert_array_equal(table[name].to_numpy(), values)
        assert table.schema.field(name).type == pa.from_numpy_dtype(values.dtype)


def test_columns_layers_and_heads_are_chosen_by_the_server(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows(sequences=3)
    table = _table(conn, new_job(columns), columns=["log10_d_a", "query"], layer=1, head=2)
    mask = (columns["layer"] == 1) & (columns["head"] == 2)
    assert table.column_names == ["query", "log10_d_a"]
    np.testing.assert_array_equal(table["log10_d_a"].to_numpy(), columns["log10_d_a"][mask])


def test_rows_in_a_common_partition_are_those_of_the_job_only(conn: psycopg.Connection, new_job: NewJob) -> None:
    ids = [new_job(gradient_scale_rows(seed=seed), state=JobState.SUCCEEDED) for seed in range(merging.FACTOR)]
    merging.merge(conn, TABLE.name, settled_s=0)
    for job_id in ids[::5]:
        table, rows = _table(conn, job_id), stored_rows(conn, job_id)
        assert set(table["job_id"].to_pylist()) == {job_id}
        for index, name in enumerate(table.column_names):
            values = table[name].to_numpy()
            np.testing.assert_array_equal(values, np.array([row[index] for row in rows], values.dtype))


def test_an_unknown_column_lists_the_known_ones(conn: psycopg.Connection, new_job: NewJob) -> None:
    with pytest.raises(KeyholeError, match=r"no column colour.*Its columns are job_id, layer") as raised:
        _table(conn, new_job(), columns=["colour"])
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_job_without_storage_or_rows_yields_nothing(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    assert _table(conn, job_id).num_rows == 0
    partitions.create(conn, TABLE.name, job_id)
    assert _table(conn, job_id).num_rows == 0


def test_rows_written_while_it_is_read_are_not_in_it(
    conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_PAGES", 1)
    columns = gradient_scale_rows(sequences=4, queries=50)
    job_id = new_job(columns)
    with psycopg.connect(conn.info.dsn, password=conn.info.password, autocommit=True) as reader:
        batches = export.table_batches(reader, TABLE, job_id)
        rows = next(batches).num_rows
        copy.copy_rows(conn, TABLE, job_id, columns)
        assert rows + sum(batch.num_rows for batch in batches) == len(columns["layer"])


def test_an_abandoned_export_leaves_the_connection_usable(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(gradient_scale_rows())
    batches = export.table_batches(conn, TABLE, job_id)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
    with conn.transaction(), pytest.raises(RuntimeError, match="in a transaction"):
        next(export.table_batches(conn, TABLE, job_id))
