"""What early stopping of sweeps asks the database: who takes part, how far they are, and that one is given up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row

from services.contracts.states import TERMINAL_STATES

_TERMINAL = [str(state) for state in TERMINAL_STATES]


@dataclass(frozen=True)
class Contender:
    """A member of a sweep as its setting is judged."""

    job_id: int
    variant: str
    setting: str  # values on the axes, as text
    seed: int
    error_code: str | None
    may_be_stopped: bool  # has not ended, was not stopped before, and was not there before the sweep


def open_sweeps(conn: Connection) -> list[tuple[int, dict[str, Any]]]:
    """Number and rule of sweeps with early stopping of which some member has not ended."""
    return conn.execute(
        """
        SELECT id, body -> 'early_stopping' FROM keyhole.sweep
        WHERE jsonb_typeof(body -> 'early_stopping') = 'object' AND EXISTS (
            SELECT FROM keyhole.sweep_member JOIN keyhole.job ON job.id = job_id
            WHERE sweep_id = sweep.id AND job.state <> ALL (%s))
        ORDER BY id
        """,
        (_TERMINAL,),
    ).fetchall()


def contenders(conn: Connection, sweep_id: int) -> list[Contender]:
    with conn.cursor(row_factory=class_row(Contender)) as cursor:
        return cursor.execute(
            """
            SELECT sweep_member.job_id, variant, setting::text, seed, error_code,
                   stopped IS NULL AND job.state IN ('queued', 'running') AND NOT EXISTS (
                       SELECT FROM keyhole.suite_job
                       WHERE suite_job.suite_id = sweep.suite_id AND suite_job.job_id = job.id AND reused
                   ) AS may_be_stopped
            FROM keyhole.sweep_member JOIN keyhole.sweep ON sweep.id = sweep_id
            JOIN keyhole.job ON job.id = sweep_member.job_id
            WHERE sweep_id = %s ORDER BY number
            """,
            (sweep_id,),
        ).fetchall()


def losses(conn: Connection, sweep_id: int, steps: Sequence[int]) -> dict[int, dict[int, float]]:
    """Validation losses in nats by job, then by step."""
    rows = conn.execute(
        """
        SELECT run.job_id, step, value FROM keyhole.sweep_member
        JOIN keyhole.run ON run.job_id = sweep_member.job_id
        JOIN keyhole.training_metric ON run_id = run.id
        WHERE sweep_id = %s AND metric = 'validation_loss_nats' AND layer IS NULL AND head IS NULL AND step = ANY (%s)
        """,
        (sweep_id, list(steps)),
    )
    found: dict[int, dict[int, float]] = {}
    for job_id, step, value in rows:
        found.setdefault(job_id, {})[step] = value
    return found


def mark(conn: Connection, sweep_id: int, job_id: int, reason: str) -> bool:
    """Store why a member is given up; False if it was before. The caller has locked the job."""
    return (
        conn.execute(
            "UPDATE keyhole.sweep_member SET stopped = %s WHERE sweep_id = %s AND job_id = %s AND stopped IS NULL",
            (reason, sweep_id, job_id),
        ).rowcount
        == 1
    )


def stopped(conn: Connection, suite_id: int) -> dict[int, str]:
    """By job, why it was given up, of the sweep that a suite begins with; without those retried since."""
    rows = conn.execute(
        """
        SELECT job_id, stopped FROM keyhole.sweep JOIN keyhole.sweep_member ON sweep_id = sweep.id
        JOIN keyhole.job ON job.id = job_id
        WHERE suite_id = %s AND stopped IS NOT NULL AND job.state IN ('cancelling', 'cancelled')
        """,
        (suite_id,),
    )
    return dict(rows.fetchall())
