"""Training jobs as the API would insert them, attempts that end as kill -9 would end them, and what a run left."""

from collections.abc import Callable
from typing import Any, TypeVar

from psycopg import Connection

from db.repositories import attempts, jobs, runs
from db.repositories.attempts import OpenAttempt
from db.repositories.runs import NewRun
from services.contracts.settings import Settings
from services.contracts.states import AttemptOutcome
from services.contracts.training.training import TrainingParameters
from services.sources import resolve_dataset, resolve_model
from tests.conftest import MigratedDatabase
from tests.integration.new_jobs import submission
from workers import training_job
from workers.lifecycle import Ledger

MODEL = "config:gpt-tiny?layers=2&width=16&heads=2&mlp=32&context=16&vocabulary=32"
T = TypeVar("T")


class Killed(BaseException):
    """Ends an attempt where kill -9 would: nothing catches it."""


class MortalLedger(Ledger):
    """Dies at its ``last``-th transaction: before it, or after its commit."""

    def __init__(self, url: str, last: int, *, committed: bool) -> None:
        super().__init__(url, patience_s=5)
        self._left, self._committed = last, committed

    def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
        self._left -= 1
        if self._left == 0 and not self._committed:
            raise Killed
        found = super().transact(function, patience_s)
        if self._left == 0:
            raise Killed
        return found


class SegmentLedger(Ledger):
    """Dies right after the transaction that ends the first segment of a job."""

    def __init__(self, url: str, job_id: int) -> None:
        super().__init__(url, patience_s=5)
        self._job_id = job_id

    def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
        def then_progress(conn: Connection) -> tuple[T, int]:
            found, job = function(conn), jobs.get(conn, self._job_id)
            assert job is not None
            return found, job.shards_done

        found, done = super().transact(then_progress, patience_s)
        if done:
            raise Killed
        return found


class CountingLedger(Ledger):
    calls = 0

    def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
        self.calls += 1
        return super().transact(function, patience_s)


def parameters(**changed: Any) -> TrainingParameters:
    return TrainingParameters.model_validate(
        {
            "steps": 6,
            "sequences_per_step": 4,
            "batch": 4,
            "length": 16,
            "schedule": {"warmup_steps": 2},
            "data": {"validation_sequences": 8},
            "validation": {"every": 3, "log_every": 1, "attention_sequences": 1},
            "checkpoints": {"every": 3, "log_spaced": True, "resume_every": 2},
            **changed,
        }
    )


def submitted(conn: Connection, settings: Settings, model: str = MODEL, **changed: Any) -> int:
    """A training job as the API would insert it."""
    asked = parameters(**changed)
    found, data = resolve_model(model, settings), resolve_dataset(f"tokens:{settings.home}/data/tokens.npy", settings)
    new = submission(
        kind="training",
        queue="training",
        model_source=found.source,
        model_identity=found.identity,
        dataset_source=data.source,
        dataset_identity=data.identity,
        parameters=asked.model_dump(mode="json"),
        shards=asked.shards(),
        run=NewRun("a run", asked.variant, asked.seed, asked.steps),
    )
    with conn.transaction():
        return jobs.insert(conn, new)


def attempt_on(conn: Connection, job_id: int) -> OpenAttempt:
    with conn.transaction():
        attempt = attempts.open_attempt(conn, "training", "tests", "cpu", 60.0)
    assert attempt is not None
    assert attempt.job_id == job_id
    return attempt


def served(conn: Connection, database: MigratedDatabase, settings: Settings, job_id: int, **ledger: Any) -> None:
    """One attempt, with a ledger that dies if it is asked to; then the attempt is declared lost."""
    _attempted(
        MortalLedger(database.owner_url, **ledger) if ledger else Ledger(database.owner_url, patience_s=5),
        conn,
        settings,
        job_id,
    )


def cut_after_a_segment(conn: Connection, database: MigratedDatabase, settings: Settings, job_id: int) -> None:
    """The first attempt on a job of several segments, killed once the first of them has ended."""
    _attempted(SegmentLedger(database.owner_url, job_id), conn, settings, job_id)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert 1 == job.shards_done < job.shards


def _attempted(ledger: Ledger, conn: Connection, settings: Settings, job_id: int) -> None:
    attempt = attempt_on(conn, job_id)
    try:
        training_job.run(attempt.token, "cpu", settings, ledger)
    except Killed:
        with conn.transaction():
            attempts.end(conn, attempt.token, AttemptOutcome.LOST)
    finally:
        ledger.close()


def trajectory(conn: Connection, job_id: int) -> dict[str, Any]:
    """All that a run left, times aside."""
    run_id = runs.of_job(conn, job_id)
    assert run_id is not None
    stored = conn.execute(
        "SELECT step, reasons, identity, validation_loss_nats, resumable FROM keyhole.checkpoint WHERE run_id = %s "
        "ORDER BY step",
        (run_id,),
    ).fetchall()
    state = conn.execute(
        "SELECT checkpoint.step, file.sha256 FROM keyhole.checkpoint_file AS file "
        "JOIN keyhole.checkpoint ON checkpoint.id = checkpoint_id WHERE run_id = %s AND file.name LIKE 'resume%%' "
        "ORDER BY step",
        (run_id,),
    ).fetchall()
    metrics = conn.execute(
        "SELECT step, metric, layer, head, value FROM keyhole.training_metric WHERE run_id = %s "
        "AND metric <> 'tokens_per_s' ORDER BY metric, layer, head, step",
        (run_id,),
    ).fetchall()
    matrices = conn.execute(
        "SELECT step, layer, matrix, weight_sigma, update_sigma FROM keyhole.training_matrix WHERE run_id = %s "
        "ORDER BY layer, matrix, step",
        (run_id,),
    ).fetchall()
    done = conn.execute("SELECT steps_done FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
    job = jobs.get(conn, job_id)
    assert job is not None
    return {
        "checkpoints": stored,
        "state": state,
        "metrics": metrics,
        "matrices": matrices,
        "steps_done": done,
        "job": (job.state, job.shards_done),
    }
