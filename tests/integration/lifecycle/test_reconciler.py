"""One round of the reconciler against a real broker."""

import time

import psycopg
import pytest
from celery import Celery

from db.repositories import attempts, jobs
from services.contracts.settings import LifeCycleSettings, Settings
from services.contracts.states import AttemptOutcome, JobState
from services.local.valkey import EmbeddedValkey
from tests.conftest import MigratedDatabase
from tests.integration.lifecycle.conftest import NewJob
from tests.integration.lifecycle.test_claims import opened, state
from workers import reconciler, tasks
from workers.reconciler import reconcile

QUICK = Settings(life=LifeCycleSettings(hint_s=0.0, database_grace_s=0.0))


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give reconciler and worker a Celery application of this broker: theirs took its broker when it was imported."""
    app = Celery("keyhole-test", broker=url, set_as_current=False)
    app.conf.broker_connection_timeout = 1
    for module in (reconciler, tasks):
        monkeypatch.setattr(module, "app", app)


@pytest.fixture(autouse=True)
def hints_go_to(broker: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(broker.url, monkeypatch)


def hints(broker: EmbeddedValkey, queue: str = "probe") -> int:
    with broker.client() as client:
        return client.llen(queue)  # type: ignore[return-value]  # the client's type covers the async one too


def test_an_expired_attempt_is_lost_and_its_job_announced(
    conn: psycopg.Connection, new_job: NewJob, broker: EmbeddedValkey
) -> None:
    job_id = new_job(shards=1)
    with conn.transaction():
        attempts.open_attempt(conn, "probe", "worker", "cpu", lease_s=0.01)
    time.sleep(0.05)
    reconcile(conn, QUICK)
    assert state(conn, job_id) == JobState.QUEUED
    assert [attempt.outcome for attempt in attempts.of_job(conn, job_id)] == [AttemptOutcome.LOST]
    assert hints(broker) == 1


def test_a_queue_that_holds_a_hint_gets_no_more(
    conn: psycopg.Connection, new_job: NewJob, broker: EmbeddedValkey
) -> None:
    new_job(), new_job(queue="training")
    for _ in range(5):
        reconcile(conn, QUICK)
    assert (hints(broker), hints(broker, "training")) == (1, 1)


def test_a_job_in_good_hands_is_not_announced(
    conn: psycopg.Connection, new_job: NewJob, broker: EmbeddedValkey
) -> None:
    new_job(shards=1)
    opened(conn)
    reconcile(conn, QUICK)
    assert hints(broker) == 0


def test_hints_wait_for_a_broker_that_is_away(
    conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new_job()
    point_at("redis://127.0.0.1:1/0", monkeypatch)
    reconcile(conn, QUICK)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert job.hinted_at is None


def test_what_a_crash_left_unsettled_is_settled(conn: psycopg.Connection, new_job: NewJob) -> None:
    cancelling, running = new_job(), new_job()
    conn.execute("UPDATE keyhole.job SET state = 'cancelling' WHERE id = %s", (cancelling,))
    conn.execute("UPDATE keyhole.job SET state = 'running' WHERE id = %s", (running,))
    reconcile(conn, QUICK)
    assert (state(conn, cancelling), state(conn, running)) == (JobState.CANCELLED, JobState.QUEUED)


def test_an_expired_attempt_that_was_stopped_while_it_held_locks_is_cut_off(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    job_id = new_job(shards=1)
    with conn.transaction():
        attempt = attempts.open_attempt(conn, "probe", "worker", "cpu", lease_s=0.01)
    assert attempt is not None
    name = attempts.connection_name(attempt.token)
    with psycopg.connect(database.owner_url, application_name=name) as stopped:
        jobs.lock(stopped, job_id)  # in a transaction that nobody will end
        time.sleep(0.05)
        reconcile(conn, QUICK)
        assert state(conn, job_id) == JobState.QUEUED
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")
        stopped.close()


def test_hints_do_not_wait_for_a_job_that_somebody_holds(database: MigratedDatabase, new_job: NewJob) -> None:
    """A child that was stopped in a transaction holds its job's row until the reconciler cuts it off."""
    held, free = new_job(), new_job()
    with database.connect() as holder, database.connect() as reconciler, holder.transaction():
        jobs.lock(holder, held)
        reconciler.execute("SET statement_timeout = '5s'")
        assert [job_id for job_id, _ in jobs.waiting(reconciler, hint_s=-1)] == [free]
