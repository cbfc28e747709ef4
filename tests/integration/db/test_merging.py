"""Merged partitions: bounded in number, and never a row missing or doubled for any reader, whatever its snapshot."""

import threading
import time
from typing import Any

import psycopg
import pytest

from db import copy, export, merging, partitions
from db.repositories import jobs
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.db.conftest import TABLE, NewJob, gradient_scale_rows, stored_rows

ROWS = gradient_scale_rows()
COUNT = f"SELECT job_id, count(*), count(DISTINCT (layer, head, sequence, query)) FROM keyhole.{TABLE.name} GROUP BY 1"


def _succeeded(new_job: NewJob, number: int) -> list[int]:
    return [new_job(ROWS, state=JobState.SUCCEEDED) for _ in range(number)]


def _merge_all(conn: psycopg.Connection) -> int:
    total = 0
    while done := merging.merge(conn, TABLE.name, settled_s=0):
        total += done
    return total


def test_many_small_jobs_end_in_few_partitions_with_their_rows_unchanged(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    ids = _succeeded(new_job, 40)
    before = {job_id: stored_rows(conn, job_id) for job_id in ids}
    assert _merge_all(conn) == 2
    assert len(partitions.bounds(conn, TABLE.name)) == 2 + 40 % merging.FACTOR
    assert {job_id: stored_rows(conn, job_id) for job_id in ids} == before
    assert sorted(job for held in partitions.bounds(conn, TABLE.name).values() for job in held) == ids


def test_the_number_of_partitions_grows_with_the_logarithm_of_the_jobs(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    rows = gradient_scale_rows(sequences=1, layers=1, heads=1, queries=1)
    for _ in range(100):
        new_job(rows, state=JobState.SUCCEEDED)
    _merge_all(conn)
    assert len(partitions.bounds(conn, TABLE.name)) < merging.FACTOR + 6
    assert conn.execute(f"SELECT count(*) FROM keyhole.{TABLE.name}").fetchone() == (100,)


def test_jobs_that_run_or_have_just_ended_are_left_alone(conn: psycopg.Connection, new_job: NewJob) -> None:
    for _ in range(merging.FACTOR - 1):
        new_job(ROWS, state=JobState.SUCCEEDED)
    running = new_job(ROWS)
    assert _merge_all(conn) == 0
    with conn.transaction():
        jobs.set_state(conn, running, JobState.SUCCEEDED)
    assert merging.merge(conn, TABLE.name, settled_s=3600) == 0
    assert _merge_all(conn) == 1


def test_readers_in_any_isolation_see_every_row_once_while_partitions_are_merged(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    ids = _succeeded(new_job, 3 * merging.FACTOR)
    expected = {(job_id, 60, 60) for job_id in ids}
    wrong: list[object] = []
    reads = []

    def read(isolation: psycopg.IsolationLevel) -> None:
        with database.connect() as reader:
            reader.isolation_level = isolation
            while not stop.is_set():
                with reader.transaction():
                    reader.execute("SELECT 1 FROM keyhole.job LIMIT 1")  # takes the snapshot, not the table's lock
                    time.sleep(0.02)
                    seen = set(reader.execute(COUNT).fetchall())
                    reads.append(isolation)
                    if seen != expected:
                        wrong.append((isolation, expected ^ seen))

    stop = threading.Event()
    levels = [psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ] * 2
    threads = [threading.Thread(target=read, args=(level,)) for level in levels]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        while len(partitions.bounds(conn, TABLE.name)) > 3 and time.monotonic() < deadline:
            merging.merge(conn, TABLE.name, settled_s=0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(partitions.bounds(conn, TABLE.name)) == 3
    assert len(reads) > 8


def test_a_snapshot_older_than_the_merge_still_finds_every_row(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is taken before the copy and first looks at the table after the merge had its chance."""
    ids = _succeeded(new_job, merging.FACTOR)
    monkeypatch.setattr(merging, "_SNAPSHOT_WAIT_S", 1)
    with database.connect() as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with reader.transaction():
            reader.execute("SELECT 1 FROM keyhole.job LIMIT 1")
            assert merging.merge(conn, TABLE.name, settled_s=0) == 0  # waited for the snapshot, and gave up
            assert set(reader.execute(COUNT).fetchall()) == {(job_id, 60, 60) for job_id in ids}
    assert _merge_all(conn) == 1


def test_a_job_retried_during_the_merge_loses_no_rows(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _succeeded(new_job, merging.FACTOR - 1)
    cancelled = new_job(ROWS, state=JobState.CANCELLED)

    def retry_and_write() -> None:
        with database.connect() as child, child.transaction():
            jobs.retry(child, cancelled)
            partitions.create(child, TABLE.name, cancelled)
            copy.copy_rows(child, TABLE, cancelled, ROWS)

    copied = merging._copy

    def copy_then_retry(*arguments: Any) -> str:
        name = copied(*arguments)
        retry_and_write()
        return name

    monkeypatch.setattr(merging, "_copy", copy_then_retry)
    assert merging.merge(conn, TABLE.name, settled_s=0) == 0
    assert len(stored_rows(conn, cancelled)) == 120
    assert len(partitions.bounds(conn, TABLE.name)) == merging.FACTOR


def test_a_merged_job_can_be_retried_and_writes_into_the_common_partition(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    _succeeded(new_job, merging.FACTOR - 1)
    failed = new_job(ROWS, state=JobState.FAILED)
    assert _merge_all(conn) == 1
    with conn.transaction():
        jobs.retry(conn, failed)
    partitions.create(conn, TABLE.name, failed)
    copy.copy_rows(conn, TABLE, failed, ROWS)
    partitions.finish(conn, TABLE.name, failed)
    assert len(stored_rows(conn, failed)) == 120
    assert len(partitions.bounds(conn, TABLE.name)) == 1


def test_deleting_from_a_common_partition_rewrites_it_without_dead_rows(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    ids = _succeeded(new_job, merging.FACTOR)
    _merge_all(conn)
    with conn.transaction():
        for job_id in ids[:4]:
            jobs.delete(conn, job_id)
    assert stored_rows(conn, ids[0]) == []
    assert merging.sweep(conn, TABLE.name, settled_s=0) == 1
    ((name, held),) = partitions.bounds(conn, TABLE.name).items()
    assert sorted(held) == ids[4:]
    assert all(len(stored_rows(conn, job_id)) == 60 for job_id in ids[4:])
    pages = f"SELECT max((ctid::text::point)[1]::int) AS last FROM keyhole.{name} GROUP BY (ctid::text::point)[0]"
    assert conn.execute(f"SELECT sum(last) FROM ({pages}) AS page").fetchone() == (12 * 60,)  # no gap: no dead row


def test_what_a_killed_housekeeper_left_is_removed(conn: psycopg.Connection, new_job: NewJob) -> None:
    ids = _succeeded(new_job, 2)
    found = merging._partitions(conn, TABLE.name)
    name = merging._copy(conn, TABLE.name, found, ids)
    merging.merge(conn, TABLE.name)
    assert conn.execute("SELECT to_regclass(%s)", (f"keyhole.{name}",)).fetchone() == (None,)
    assert all(len(stored_rows(conn, job_id)) == 60 for job_id in ids)


def test_an_export_that_is_under_way_gets_every_row_once(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_PAGES", 1)
    big = gradient_scale_rows(sequences=10, queries=50)
    ids = [new_job(big, state=JobState.SUCCEEDED) for _ in range(merging.FACTOR)]
    with database.connect() as reader:
        batches = export.table_batches(reader, TABLE, ids[3])
        first = next(batches)
        assert merging.merge(conn, TABLE.name, settled_s=0) == 0  # gives way to the reader
        rows = first.num_rows + sum(batch.num_rows for batch in batches)
        assert rows == len(big["layer"])
        assert merging.merge(conn, TABLE.name, settled_s=0) == 1
        assert sum(batch.num_rows for batch in export.table_batches(reader, TABLE, ids[3])) == rows
