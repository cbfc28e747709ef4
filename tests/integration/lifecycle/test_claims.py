"""Attempts and claims under concurrency: nothing is claimed twice, nothing late is written."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import psycopg

from db.repositories import attempts, jobs, shards
from db.repositories.attempts import OpenAttempt
from services.contracts.states import AttemptOutcome, JobState
from tests.conftest import MigratedDatabase
from tests.integration.lifecycle.conftest import NewJob

T = TypeVar("T")


def at_once(database: MigratedDatabase, times: int, function: Callable[[psycopg.Connection], T]) -> list[T]:
    """Run a transaction on so many connections at the same moment."""
    barrier = Barrier(times)

    def run(_: int) -> T:
        with database.connect() as conn:
            barrier.wait()
            with conn.transaction():
                return function(conn)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(run, range(times)))


def opened(conn: psycopg.Connection, queue: str = "probe") -> OpenAttempt | None:
    with conn.transaction():
        return attempts.open_attempt(conn, queue, "worker", "cpu", lease_s=60)


def claimed(conn: psycopg.Connection, attempt: OpenAttempt) -> shards.ClaimedShard | None:
    with conn.transaction():
        return shards.claim(conn, attempt.token)


def finished(conn: psycopg.Connection, shard: shards.ClaimedShard, rows: int = 1) -> bool:
    with conn.transaction():
        return shards.finish(conn, shard, rows, {})


def ended(conn: psycopg.Connection, attempt: OpenAttempt, outcome: AttemptOutcome) -> bool:
    with conn.transaction():
        return attempts.end(conn, attempt.token, outcome)


def state(conn: psycopg.Connection, job_id: int) -> str:
    job = jobs.get(conn, job_id)
    assert job is not None
    return job.state


def test_ten_copies_of_a_hint_open_one_attempt_on_a_job_of_one_shard(
    database: MigratedDatabase, new_job: NewJob
) -> None:
    new_job(shards=1)
    answers = at_once(database, 10, lambda conn: attempts.open_attempt(conn, "probe", "worker", "cpu", 60))
    assert sum(answer is not None for answer in answers) == 1


def test_a_job_gets_no_more_attempts_than_it_has_open_shards(database: MigratedDatabase, new_job: NewJob) -> None:
    new_job(shards=3)
    answers = at_once(database, 8, lambda conn: attempts.open_attempt(conn, "probe", "worker", "cpu", 60))
    assert sorted(answer.number for answer in answers if answer is not None) == [1, 2, 3]


def test_every_shard_is_claimed_once_by_competing_attempts(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    new_job(shards=40)
    live = [attempt for _ in range(8) if (attempt := opened(conn)) is not None]
    assert len(live) == 8

    def claim_all(attempt: OpenAttempt) -> list[int]:
        indices = []
        with database.connect() as own:
            while (shard := claimed(own, attempt)) is not None:
                indices.append(shard.index)
                assert finished(own, shard)
        return indices

    with ThreadPoolExecutor(8) as pool:
        indices = [index for claimed_by_one in pool.map(claim_all, live) for index in claimed_by_one]
    assert sorted(indices) == list(range(40))


def test_two_connections_with_one_token_still_claim_different_shards(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    new_job(shards=6)
    attempt = opened(conn)
    assert attempt is not None
    claims = at_once(database, 6, lambda own: shards.claim(own, attempt.token))
    assert sorted(shard.index for shard in claims if shard is not None) == list(range(6))


def test_a_finish_after_the_attempt_was_lost_changes_nothing(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=1)
    late = opened(conn)
    assert late is not None
    late_shard = claimed(conn, late)
    assert late_shard is not None
    assert ended(conn, late, AttemptOutcome.LOST)
    successor = opened(conn)
    assert successor is not None
    shard = claimed(conn, successor)
    assert shard is not None
    assert shard.index == late_shard.index
    assert not finished(conn, late_shard, rows=7)
    assert finished(conn, shard, rows=5)
    assert not finished(conn, late_shard, rows=7)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert (job.rows, job.shards_done) == (5, 1)


def test_a_finished_claim_can_be_recognised_after_a_lost_answer(conn: psycopg.Connection, new_job: NewJob) -> None:
    new_job(shards=1)
    attempt = opened(conn)
    assert attempt is not None
    shard = claimed(conn, attempt)
    assert shard is not None
    assert not shards.is_done(conn, shard)
    assert finished(conn, shard)
    assert shards.is_done(conn, shard)
    assert not finished(conn, shard)


def test_an_ended_attempt_can_neither_renew_nor_claim(conn: psycopg.Connection, new_job: NewJob) -> None:
    new_job(shards=2)
    attempt = opened(conn)
    assert attempt is not None
    assert [pulse.token for pulse in attempts.renew(conn, attempt.token, 60)] == [attempt.token]
    assert ended(conn, attempt, AttemptOutcome.RELEASED)
    assert attempts.renew(conn, attempt.token, 60) == []
    assert claimed(conn, attempt) is None
    assert not ended(conn, attempt, AttemptOutcome.LOST)


def test_work_goes_by_priority_then_to_the_job_with_fewest_attempts_then_by_age(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    first, second, urgent = new_job(shards=5), new_job(shards=5), new_job(shards=1, priority=10)
    served = [attempt.job_id for _ in range(5) if (attempt := opened(conn)) is not None]
    assert served == [urgent, first, second, first, second]


def test_queues_are_served_apart(conn: psycopg.Connection, new_job: NewJob) -> None:
    new_job(shards=1, queue="training")
    assert opened(conn, "probe") is None
    assert opened(conn, "training") is not None


def test_a_job_whose_finisher_died_wants_one_attempt_more(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job(shards=1)
    attempt = opened(conn)
    assert attempt is not None
    shard = claimed(conn, attempt)
    assert shard is not None
    assert finished(conn, shard)
    assert opened(conn) is None
    assert ended(conn, attempt, AttemptOutcome.CRASHED)
    assert state(conn, job_id) == JobState.QUEUED
    assert opened(conn) is not None
    assert opened(conn) is None


def test_a_child_goes_from_training_to_training_only_while_no_probe_waits(
    conn: psycopg.Connection, new_job: NewJob
) -> None:
    first, second = new_job(shards=1, queue="training"), new_job(shards=1, queue="training")
    assert opened(conn, "training") is not None
    jobs.set_state(conn, first, JobState.SUCCEEDED)
    assert attempts.next_of_model(conn, "training", first) == second
    probe = new_job(shards=1)
    assert attempts.next_of_model(conn, "training", first) is None
    assert attempts.next_job(conn, "training") == second, "it is not lost"
    jobs.set_state(conn, probe, JobState.CANCELLED)
    assert attempts.next_of_model(conn, "training", first) == second
