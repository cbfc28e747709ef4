"""Jobs that ride along in the passes of another: who may, and what becomes of them when their leader ends."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from db.repositories import attempts, jobs, riders, shards
from db.repositories.attempts import OpenAttempt, Pulse
from services.contracts.states import AttemptOutcome, JobState
from tests.conftest import MigratedDatabase
from tests.integration.new_jobs import submission

SHARDS = [(0, 1), (1, 1), (2, 1)]


def insert(
    conn: psycopg.Connection, pass_key: str | None = "pass", credit: str | None = "sequence", **changes: Any
) -> int:
    new = replace(submission(shards=SHARDS, **changes), pass_key=pass_key, pass_credit=credit)
    with conn.transaction():
        return jobs.insert(conn, new)


def lead(conn: psycopg.Connection) -> tuple[OpenAttempt, list[OpenAttempt]]:
    with conn.transaction():
        leader = attempts.open_attempt(conn, "probe", "worker", "cpu", lease_s=60)
        assert leader is not None
        return leader, riders.open_riders(conn, leader.token, 60)


def state(conn: psycopg.Connection, job_id: int) -> str:
    row = jobs.get(conn, job_id)
    assert row is not None
    return row.state


def outcomes(conn: psycopg.Connection, job_id: int) -> list[str | None]:
    return [attempt.outcome for attempt in attempts.of_job(conn, job_id)]


def test_waiting_jobs_of_the_same_passes_ride_along(conn: psycopg.Connection) -> None:
    first = insert(conn)
    same, forward_only = insert(conn), insert(conn, credit=None)
    for other in ({"credit": "own_token"}, {"pass_key": "other"}, {"pass_key": None}):
        insert(conn, **other)
    leader, opened = lead(conn)
    assert leader.job_id == first
    assert [attempt.job_id for attempt in opened] == [same, forward_only]
    assert state(conn, same) == state(conn, forward_only) == "running"


def test_a_leader_without_a_backward_pass_takes_those_of_one_loss(conn: psycopg.Connection) -> None:
    insert(conn, credit=None, priority=5)
    own, other = insert(conn, credit="own_token"), insert(conn, credit="sequence")
    _, opened = lead(conn)
    assert [attempt.job_id for attempt in opened] == [own]
    assert state(conn, other) == "queued"


@pytest.mark.parametrize("which", ["leader", "rider"])
def test_a_job_that_lost_an_attempt_is_measured_without_company(conn: psycopg.Connection, which: str) -> None:
    first, second = insert(conn, priority=5), insert(conn)
    crashed = first if which == "leader" else second
    conn.execute("UPDATE keyhole.job SET crashes = 1 WHERE id = %s", (crashed,))
    _, opened = lead(conn)
    assert opened == []


def test_members_claim_the_same_shard(conn: psycopg.Connection) -> None:
    insert(conn)
    insert(conn)
    leader, (rider,) = lead(conn)
    with conn.transaction():
        assert shards.claim(conn, leader.token) is not None
        second = shards.claim(conn, leader.token)
        assert second is not None
        same = shards.claim(conn, rider.token, second.index)
        assert same is not None
        assert (same.job_id, same.index, same.first_sequence) == (rider.job_id, 1, 1)
        assert shards.claim(conn, rider.token, second.index) is None  # taken


def renewed(conn: psycopg.Connection, leader: OpenAttempt, lease_s: float) -> Pulse:
    """What the leader's renewal tells of its one rider."""
    own, rider = sorted(attempts.renew(conn, leader.token, lease_s), key=lambda pulse: pulse.job_id != leader.job_id)
    assert own.token == leader.token
    return rider


def lease(conn: psycopg.Connection, token: UUID) -> object:
    row = conn.execute("SELECT lease_until FROM keyhole.attempt WHERE token = %s", (token,)).fetchone()
    assert row is not None
    return row[0]


def test_a_renewal_covers_the_riders(conn: psycopg.Connection) -> None:
    insert(conn)
    insert(conn)
    leader, (rider,) = lead(conn)
    before = lease(conn, rider.token)
    pulse = renewed(conn, leader, 90)
    assert lease(conn, rider.token) > before  # type: ignore[operator]  # two times of day
    assert (pulse.job_id, pulse.job_state) == (rider.job_id, JobState.RUNNING)


def test_a_cancelled_rider_leaves_and_the_leader_goes_on(conn: psycopg.Connection) -> None:
    first, second = insert(conn), insert(conn)
    leader, (rider,) = lead(conn)
    with conn.transaction():
        claimed = shards.claim(conn, rider.token, 0)
        jobs.request_cancel(conn, second)
    assert claimed is not None
    pulse = renewed(conn, leader, 60)
    with conn.transaction():
        riders.drop_unwanted(conn, pulse)
    assert (state(conn, first), state(conn, second)) == ("running", "cancelled")
    with conn.transaction():
        assert not shards.finish(conn, claimed, 1, {}), "what the child still measured must be refused"


def test_a_rider_beyond_its_time_limit_fails_alone(conn: psycopg.Connection) -> None:
    first, second = insert(conn), insert(conn, time_limit_s=5)
    leader, _ = lead(conn)
    conn.execute("UPDATE keyhole.job SET started_at = started_at - interval '9 s' WHERE id = %s", (second,))
    pulse = renewed(conn, leader, 60)
    with conn.transaction():
        riders.drop_unwanted(conn, pulse)
    job = jobs.get(conn, second)
    assert job is not None
    assert (job.state, job.error_code, state(conn, first)) == ("failed", "time_limit", "running")


def test_when_the_leader_dies_riders_go_back_to_the_queue_unblamed(conn: psycopg.Connection) -> None:
    first, second = insert(conn), insert(conn)
    leader, (rider,) = lead(conn)
    with conn.transaction():
        shards.claim(conn, rider.token, 0)
    with conn.transaction():
        attempts.end(conn, leader.token, AttemptOutcome.CRASHED, "killed")
    with conn.transaction():
        riders.release(conn, leader.token)
    job, led = jobs.get(conn, second), jobs.get(conn, first)
    assert job is not None and led is not None
    assert (job.state, job.crashes, led.crashes) == ("queued", 0, 1)
    assert outcomes(conn, second) == ["released"]
    again, opened = lead(conn)
    assert (again.job_id, opened) == (first, []), "after a crash, without company"


def test_a_child_goes_on_with_its_suites_jobs_of_the_same_model(conn: psycopg.Connection) -> None:
    done = insert(conn, pass_key=None)
    leader, _ = lead(conn)
    other_model = insert(conn, pass_key=None, model_identity="another")
    in_suite = insert(conn, pass_key=None)
    with conn.transaction():
        assert attempts.next_of_model(conn, "probe", done) is None, "no suite, and not the next in the queue"
        row = conn.execute("INSERT INTO keyhole.suite (name) VALUES ('s') RETURNING id").fetchone()
        assert row is not None
        for position, job_id in enumerate((done, other_model, in_suite)):
            conn.execute("INSERT INTO keyhole.suite_job VALUES (%s, %s, %s, false)", (row[0], position, job_id))
        attempts.end(conn, leader.token, AttemptOutcome.COMPLETED)
        conn.execute("UPDATE keyhole.job SET state = 'succeeded' WHERE id = %s", (done,))
        assert attempts.next_of_model(conn, "probe", done) == in_suite
        conn.execute("UPDATE keyhole.job SET priority = 1 WHERE id = %s", (other_model,))
        assert attempts.next_of_model(conn, "probe", done) is None, "what is more urgent comes first"


def test_cutting_off_a_rider_ends_the_sessions_of_its_leader(
    database: MigratedDatabase, conn: psycopg.Connection
) -> None:
    insert(conn)
    insert(conn)
    leader, (rider,) = lead(conn)
    with database.connect() as child:
        child.execute("SELECT set_config('application_name', %s, false)", (attempts.connection_name(leader.token),))
        attempts.cut_off(conn, rider.token)
        with pytest.raises(psycopg.OperationalError):
            child.execute("SELECT 1")
