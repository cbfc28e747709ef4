"""A job's own partition: made once by many at a time, indexed at the end, gone with the job."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from db import copy, merging, partitions
from db.repositories import jobs
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.db.conftest import TABLE, NewJob, gradient_scale_rows, stored_rows

ROWS = gradient_scale_rows()


def test_many_children_of_many_jobs_create_and_write_at_once(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    job_ids = [new_job() for _ in range(6)] * 4

    def child(job_id: int) -> None:
        with database.connect() as own, own.transaction():
            partitions.create(own, TABLE.name, job_id)
            copy.copy_rows(own, TABLE, job_id, ROWS)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(child, job_ids))
    assert set(partitions.bounds(conn, TABLE.name)) == {f"{TABLE.name}_j{job_id}" for job_id in set(job_ids)}
    counts = conn.execute(f"SELECT job_id, count(*) FROM keyhole.{TABLE.name} GROUP BY job_id").fetchall()
    assert dict(counts) == dict.fromkeys(set(job_ids), 4 * 60)


def test_creating_does_not_wait_for_readers_of_the_table(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    new_job(ROWS)
    job_id = new_job()
    with database.connect() as reader, reader.transaction():
        assert reader.execute(f"SELECT count(*) FROM keyhole.{TABLE.name}").fetchone() == (60,)
        conn.execute("SET lock_timeout = '2s'")
        partitions.create(conn, TABLE.name, job_id)
        copy.copy_rows(conn, TABLE, job_id, ROWS)
        assert reader.execute(f"SELECT count(*) FROM keyhole.{TABLE.name}").fetchone() == (120,)


def test_rows_of_a_deleted_job_find_no_place(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(state=JobState.FAILED)
    with conn.transaction():
        jobs.delete(conn, job_id)
    with pytest.raises(KeyholeError) as raised:
        partitions.create(conn, TABLE.name, job_id)
    assert raised.value.code is ErrorCode.NOT_FOUND
    assert partitions.bounds(conn, TABLE.name) == {}


def test_a_query_for_one_job_reads_its_partition_only(conn: psycopg.Connection, new_job: NewJob) -> None:
    first, second = new_job(ROWS), new_job(ROWS)
    plan = "\n".join(
        row[0] for row in conn.execute(f"EXPLAIN SELECT * FROM analysis.{TABLE.name} WHERE job_id = {first}")
    )
    assert f"{TABLE.name}_j{first}" in plan
    assert f"{TABLE.name}_j{second}" not in plan


def test_finishing_adds_one_index_that_one_head_of_one_sequence_uses(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(gradient_scale_rows(sequences=40, layers=8, heads=8, queries=100))
    partitions.finish(conn, TABLE.name, job_id)
    partitions.finish(conn, TABLE.name, job_id)
    indexes = conn.execute(
        "SELECT indexdef FROM pg_indexes WHERE tablename = %s", (f"{TABLE.name}_j{job_id}",)
    ).fetchall()
    assert len(indexes) == 1
    assert "USING brin (layer, head, sequence)" in indexes[0][0]
    one = f"job_id = {job_id} AND layer = 3 AND head = 2 AND sequence = 7"
    plan = conn.execute(f"EXPLAIN SELECT * FROM analysis.{TABLE.name} WHERE {one}").fetchall()
    assert any(f"{TABLE.name}_j{job_id}_brin" in row[0] for row in plan)


def test_deleting_a_job_frees_its_storage_and_no_other(conn: psycopg.Connection, new_job: NewJob) -> None:
    gone, kept = (new_job(ROWS, state=JobState.SUCCEEDED) for _ in range(2))
    with conn.transaction():
        jobs.delete(conn, gone)
    assert stored_rows(conn, gone) == []
    assert conn.execute(f"SELECT pg_relation_size('keyhole.{TABLE.name}_j{gone}')").fetchone() == (0,)
    assert merging.sweep(conn, TABLE.name) == 1
    assert partitions.bounds(conn, TABLE.name) == {f"{TABLE.name}_j{kept}": [kept]}
    assert len(stored_rows(conn, kept)) == 60


def test_a_long_reader_delays_the_storage_but_not_the_deletion(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    job_id = new_job(ROWS, state=JobState.SUCCEEDED)
    with database.connect() as reader, reader.transaction():
        reader.execute(f"SELECT count(*) FROM keyhole.{TABLE.name}")
        with conn.transaction():
            jobs.delete(conn, job_id)
        assert jobs.get(conn, job_id) is None
        assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)
    merging.sweep(conn, TABLE.name)
    assert partitions.bounds(conn, TABLE.name) == {}


def test_jobs_start_while_the_storage_of_a_deleted_one_waits_for_its_readers(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_SNAPSHOT_WAIT_S", 3)
    deleted, starting = new_job(ROWS, state=JobState.SUCCEEDED), new_job()
    with database.connect() as reader, reader.transaction():
        reader.execute(f"SELECT count(*) FROM keyhole.{TABLE.name} WHERE job_id = {deleted}")
        with conn.transaction():
            jobs.delete(conn, deleted)
        with database.connect() as housekeeper, ThreadPoolExecutor(1) as pool:
            sweeping = pool.submit(merging.sweep, housekeeper, TABLE.name)
            time.sleep(1)
            conn.execute("SET lock_timeout = '1s'")
            partitions.create(conn, TABLE.name, starting)
            copy.copy_rows(conn, TABLE, starting, ROWS)
            assert len(stored_rows(conn, starting)) == 60
            assert sweeping.result() == 0
    merging.sweep(conn, TABLE.name)
    assert partitions.bounds(conn, TABLE.name) == {f"{TABLE.name}_j{starting}": [starting]}
