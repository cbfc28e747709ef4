"""Runs: one trajectory of a model each, and what is measured of it by step.

Whoever writes numbers of a step holds the claim on the segment that the step is in; see ``holds``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import Connection
from psycopg.types.json import Jsonb

from services.contracts.training.numbers import Matrix, Metric

if TYPE_CHECKING:  # shards imports jobs, which inserts the run of a training job
    from db.repositories.shards import ClaimedShard


@dataclass(frozen=True)
class NewRun:
    """The run that a training job is to make."""

    name: str
    variant: str
    seed: int
    steps: int
    pinned: Mapping[str, str] = field(default_factory=dict)  # identity of what a parameter names, by its name


def insert(conn: Connection, run: NewRun, job_id: int, submitted_by: int | None) -> int:
    row = conn.execute(
        "INSERT INTO keyhole.run (name, origin, job_id, variant, seed, steps, pinned, submitted_by) "
        "VALUES (%s, 'trained', %s, %s, %s, %s, %s, %s) RETURNING id",
        (run.name, job_id, run.variant, run.seed, run.steps, Jsonb(dict(run.pinned)), submitted_by),
    ).fetchone()
    assert row is not None
    return row[0]


def insert_imported(conn: Connection, name: str, source: str, last_step: int, submitted_by: int | None) -> int:
    """A run of models that exist already; ``source`` is the series that was named."""
    row = conn.execute(
        "INSERT INTO keyhole.run (name, origin, source, steps_done, submitted_by) "
        "VALUES (%s, 'imported', %s, %s, %s) RETURNING id",
        (name, source, last_step, submitted_by),
    ).fetchone()
    assert row is not None
    return row[0]


def pinned(conn: Connection, run_id: int) -> dict[str, str]:
    """Identity of what each parameter of a run's job named when it was submitted, by the name of the parameter."""
    row = conn.execute("SELECT pinned FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
    return row[0] if row else {}


def of_job(conn: Connection, job_id: int) -> int | None:
    row = conn.execute("SELECT id FROM keyhole.run WHERE job_id = %s", (job_id,)).fetchone()
    return row[0] if row else None


def holds(conn: Connection, segment: "ClaimedShard") -> bool:
    """Whether the claim on a segment still stands; it then stands until the end of the transaction."""
    row = conn.execute(
        "SELECT FROM keyhole.shard WHERE job_id = %s AND index = %s AND claim_token = %s AND state = 'running' "
        "FOR SHARE",
        (segment.job_id, segment.index, segment.claim_token),
    ).fetchone()
    return row is not None


def forget_after(conn: Connection, run_id: int, step: int) -> None:
    """Remove the numbers of later steps, which are about to be computed again."""
    for table in ("training_metric", "training_matrix"):
        conn.execute(f"DELETE FROM keyhole.{table} WHERE run_id = %s AND step > %s", (run_id, step))  # noqa: S608  # one of two names
    told(conn, run_id, step)


def write(conn: Connection, run_id: int, metrics: Sequence[Metric], matrices: Sequence[Matrix] = ()) -> None:
    """Store numbers; those of a step that is there already are replaced."""
    with conn.cursor() as cursor:
        cursor.executemany(
            """
            INSERT INTO keyhole.training_metric (run_id, step, metric, layer, head, value)
            VALUES (%s, %s, %s, %s, %s, %s)
            ON CONFLICT (run_id, metric, layer, head, step) DO UPDATE SET value = excluded.value
            """,
            [(run_id, row.step, row.metric, row.layer, row.head, row.value) for row in metrics],
        )
        cursor.executemany(
            """
            INSERT INTO keyhole.training_matrix (run_id, step, layer, matrix, height, width, weight_sigma, update_sigma)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (run_id, layer, matrix, step) DO UPDATE
            SET weight_sigma = excluded.weight_sigma, update_sigma = excluded.update_sigma
            """,
            [
                (run_id, row.step, row.layer, row.matrix, row.height, row.width, row.weight_sigma, row.update_sigma)
                for row in matrices
            ],
        )


def told(conn: Connection, run_id: int, steps_done: int) -> None:
    """Tell how far the run is: in its row and as the phase of its running job, without an event."""
    conn.execute(
        """
        UPDATE keyhole.job
        SET phase = format('step %%s of %%s', %s::integer, run.steps), changed_at = clock_timestamp()
        FROM keyhole.run WHERE run.id = %s AND job.id = run.job_id AND job.state = 'running'
        """,
        (steps_done, run_id),
    )
    conn.execute("UPDATE keyhole.run SET steps_done = %s WHERE id = %s", (steps_done, run_id))
