"""States of a job as its attempts end: lost, crashed, released, cancelled, out of attempts, retried, deleted."""

import time

import psycopg
import pytest

from db.repositories import attempts, events, jobs
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.states import AttemptOutcome, JobState
from tests.integration.lifecycle.conftest import NewJob
from tests.integration.lifecycle.test_claims import claimed, ended, finished, opened, state


def cancel(conn: psycopg.Connection, job_id: int) -> JobState:
    with conn.transaction():
        return jobs.request_cancel(conn, job_id)


def test_a_lost_attempt_gives_its_shard_back(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=2)
    attempt = opened(conn)
    assert attempt is not None
    shard = claimed(conn, attempt)
    assert shard is not None
    ended(conn, attempt, AttemptOutcome.LOST)
    assert state(conn, job_id) == JobState.QUEUED
    successor = opened(conn)
    assert successor is not None
    again = claimed(conn, successor)
    assert again is not None
    assert again.index == shard.index


@pytest.mark.parametrize("outcome", [AttemptOutcome.LOST, AttemptOutcome.CRASHED])
def test_as_many_deaths_in_a_row_as_allowed_fail_the_job(
    conn: psycopg.Connection, new_job: NewJob, outcome: AttemptOutcome
) -> None:
    job_id = new_job(max_attempts=3)
    for _ in range(3):
        attempt = opened(conn)
        assert attempt is not None
        ended(conn, attempt, outcome)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert job.state == JobState.FAILED
    assert job.error_code == ErrorCode.ATTEMPTS_EXHAUSTED
    assert job.error_message is not None
    assert "3 attempts" in job.error_message
    assert opened(conn) is None


def test_a_finished_shard_forgives_earlier_deaths(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=5, max_attempts=2)
    for _ in range(4):
        attempt = opened(conn)
        assert attempt is not None
        shard = claimed(conn, attempt)
        assert shard is not None
        assert finished(conn, shard)
        ended(conn, attempt, AttemptOutcome.CRASHED)
    assert state(conn, job_id) == JobState.QUEUED


def test_released_attempts_never_count_against_the_job(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(max_attempts=1)
    for _ in range(5):
        attempt = opened(conn)
        assert attempt is not None
        ended(conn, attempt, AttemptOutcome.RELEASED)
    assert state(conn, job_id) == JobState.QUEUED
    assert "waits for a worker" in events.after(conn, job_id, 0)[-1].data["reason"]


def test_cancelling_a_queued_job_is_immediate(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    assert cancel(conn, job_id) is JobState.CANCELLED
    assert opened(conn) is None


def test_a_cancelled_running_job_ends_when_its_last_attempt_does(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=2)
    first, second = opened(conn), opened(conn)
    assert first is not None
    assert second is not None
    shard = claimed(conn, first)
    assert shard is not None
    assert cancel(conn, job_id) is JobState.CANCELLING
    assert not finished(conn, shard)
    assert claimed(conn, second) is None
    ended(conn, first, AttemptOutcome.CANCELLED)
    assert state(conn, job_id) == JobState.CANCELLING
    ended(conn, second, AttemptOutcome.LOST)
    assert state(conn, job_id) == JobState.CANCELLED


def test_a_terminal_job_cannot_be_cancelled(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    cancel(conn, job_id)
    with pytest.raises(KeyholeError, match="already cancelled"):
        cancel(conn, job_id)


def test_an_error_fails_the_job_and_is_kept(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    attempt = opened(conn)
    assert attempt is not None
    with conn.transaction():
        attempts.fail(conn, attempt.token, AttemptOutcome.FAILED, ErrorCode.PARITY_FAILED, "off by 1", "look", "Trace")
    job = jobs.get(conn, job_id)
    assert job is not None
    assert job.state == JobState.FAILED
    assert (job.error_code, job.error_message, job.error_hint, job.error_traceback) == (
        "parity_failed",
        "off by 1",
        "look",
        "Trace",
    )


def test_an_error_of_a_cancelled_job_leaves_it_cancelled(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    attempt = opened(conn)
    assert attempt is not None
    cancel(conn, job_id)
    with conn.transaction():
        attempts.fail(conn, attempt.token, AttemptOutcome.FAILED, ErrorCode.UNEXPECTED, "broke")
    assert state(conn, job_id) == JobState.CANCELLED


def test_retry_keeps_finished_shards_and_forgets_the_error(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=2)
    attempt = opened(conn)
    assert attempt is not None
    shard = claimed(conn, attempt)
    assert shard is not None
    assert finished(conn, shard, rows=9)
    with conn.transaction():
        attempts.fail(conn, attempt.token, AttemptOutcome.FAILED, ErrorCode.UNEXPECTED, "broke")
    with conn.transaction():
        jobs.retry(conn, job_id)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert (job.state, job.shards_done, job.rows, job.error_code) == (JobState.QUEUED, 1, 9, None)
    successor = opened(conn)
    assert successor is not None
    remaining = claimed(conn, successor)
    assert remaining is not None
    assert remaining.index == 1


def test_retry_of_a_running_job_is_refused(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    opened(conn)
    with pytest.raises(KeyholeError, match="running"), conn.transaction():
        jobs.retry(conn, job_id)


def test_leases_count_on_the_databases_clock_and_not_soon_after_its_start(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    new_job()
    with conn.transaction():
        attempt = attempts.open_attempt(conn, "probe", "worker", "cpu", lease_s=0.05)
    assert attempt is not None
    time.sleep(0.1)
    assert attempts.expired(conn, database_grace_s=0.0) == [attempt.token]
    assert attempts.expired(conn, database_grace_s=1e6) == []
    attempts.renew(conn, attempt.token, 60)
    assert attempts.expired(conn, database_grace_s=0.0) == []


def test_every_change_of_state_is_an_event_in_order(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=1)
    attempt = opened(conn)
    assert attempt is not None
    shard = claimed(conn, attempt)
    assert shard is not None
    finished(conn, shard)
    cancel(conn, job_id)
    ended(conn, attempt, AttemptOutcome.CANCELLED)
    history = events.after(conn, job_id, 0)
    assert [event.type for event in history] == [
        "queued",
        "running",
        "progress",
        "cancelling",
        "attempt_ended",
        "cancelled",
    ]
    assert events.after(conn, job_id, history[2].id) == history[3:]


def test_the_default_lease_outlasts_several_heartbeats() -> None:
    life = Settings().life
    assert life.lease_s >= 5 * life.heartbeat_s
