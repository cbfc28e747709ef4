"""Training runs as a job would have made them, for tests that need their rows and no worker."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg.types.json import Jsonb

from db.repositories import jobs, runs
from db.repositories.runs import Matrix, Metric, NewRun
from services.contracts.states import JobState
from services.contracts.training.training import TrainingParameters
from tests.integration.new_jobs import submission


def trained_run(
    conn: Connection,
    *,
    name: str = "a run",
    losses: Sequence[tuple[int, float]] = ((0, 7.0), (250, 4.0), (500, 3.5)),
    state: JobState = JobState.SUCCEEDED,
    metrics: Sequence[Metric] = (),
    matrices: Sequence[Matrix] = (),
    dataset: str = "builtin:python-docs",
    model: str = "config:gpt-tiny",
    **parameters: Any,
) -> int:
    """A run with these validation losses by step, the last step among them done; returns its number."""
    of_job = TrainingParameters.model_validate({"steps": max([step for step, _ in losses] or [1]) or 1, **parameters})
    new = submission(
        kind="training",
        queue="training",
        label=name,
        model_source=model,
        dataset_source=dataset,
        parameters=of_job.model_dump(mode="json"),
        shards=of_job.shards(),
        run=NewRun(name, of_job.variant, of_job.seed, of_job.steps),
    )
    job_id = jobs.insert(conn, new)
    if state is not JobState.QUEUED:
        jobs.set_state(conn, job_id, JobState.RUNNING)
    if state.terminal:
        jobs.set_state(conn, job_id, state)
    run_id = runs.of_job(conn, job_id)
    assert run_id is not None
    rows = [Metric(step, "validation_loss_nats", loss) for step, loss in losses]
    rows += [Metric(step, "validation_bits_per_byte", loss / 2) for step, loss in losses]
    runs.write(conn, run_id, [*rows, *metrics], matrices)
    runs.told(conn, run_id, max([step for step, _ in losses] or [0]))
    return run_id


def stored_checkpoint(
    conn: Connection,
    run_id: int,
    step: int,
    *,
    reasons: Sequence[str] = ("interval",),
    identity: str | None = None,
    validation_loss_nats: float | None = None,
) -> int:
    """A checkpoint's row, without files; returns its number."""
    row = conn.execute(
        """
        INSERT INTO keyhole.checkpoint (run_id, step, reasons, identity, model_type, config, validation_loss_nats)
        VALUES (%s, %s, %s, %s, 'gpt2', %s, %s) RETURNING id
        """,
        (
            run_id,
            step,
            list(reasons),
            identity or f"sha256:{run_id}-{step}",
            Jsonb({"model_type": "gpt2"}),
            validation_loss_nats,
        ),
    ).fetchone()
    assert row is not None
    return row[0]
