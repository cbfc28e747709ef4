"""Later stages of suites: what waits, what stood before it, and what became of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from services.contracts.states import TERMINAL_STATES

_TERMINAL = [str(state) for state in TERMINAL_STATES]


@dataclass(frozen=True)
class StageRow:
    suite_id: int
    number: int
    body: dict[str, Any]
    state: str
    detail: str | None
    submitted_at: datetime | None


@dataclass(frozen=True)
class DueStage:
    """A waiting stage whose turn has come."""

    suite_id: int
    number: int
    body: dict[str, Any]
    name: str  # of the suite
    submitted_by: int | None


@dataclass(frozen=True)
class EarlierJob:
    job_id: int
    kind: str
    stage: int
    state: str
    stopped: bool  # given up by its sweep, which is no failure


def insert(conn: Connection, suite_id: int, number: int, body: dict[str, Any]) -> None:
    conn.execute(
        "INSERT INTO keyhole.suite_stage (suite_id, number, body) VALUES (%s, %s, %s)", (suite_id, number, Jsonb(body))
    )


def of_suite(conn: Connection, suite_id: int) -> list[StageRow]:
    with conn.cursor(row_factory=class_row(StageRow)) as cursor:
        return cursor.execute(
            "SELECT * FROM keyhole.suite_stage WHERE suite_id = %s ORDER BY number", (suite_id,)
        ).fetchall()


def due(conn: Connection) -> list[DueStage]:
    """The first waiting stage of each suite whose jobs so far have all ended."""
    with conn.cursor(row_factory=class_row(DueStage)) as cursor:
        return cursor.execute(
            """
            SELECT DISTINCT ON (suite_id) suite_id, number, body, suite.name, suite.submitted_by
            FROM keyhole.suite_stage JOIN keyhole.suite ON suite.id = suite_id
            WHERE suite_stage.state = 'waiting' AND NOT EXISTS (
                SELECT FROM keyhole.suite_job JOIN keyhole.job ON job.id = job_id
                WHERE suite_job.suite_id = suite_stage.suite_id AND job.state <> ALL (%s))
            ORDER BY suite_id, number
            """,
            (_TERMINAL,),
        ).fetchall()


def lock_due(conn: Connection, suite_id: int, number: int) -> bool:
    """Whether the stage still waits and its turn is still there; it is locked until the end of the transaction.

    A job that is retried in that time would be waited for again: its row is locked too.
    """
    row = conn.execute(
        "SELECT FROM keyhole.suite_stage WHERE suite_id = %s AND number = %s AND state = 'waiting' FOR UPDATE",
        (suite_id, number),
    ).fetchone()
    if row is None:
        return False
    states = conn.execute(
        "SELECT state FROM keyhole.job WHERE id IN (SELECT job_id FROM keyhole.suite_job WHERE suite_id = %s) "
        "ORDER BY id FOR SHARE",
        (suite_id,),
    ).fetchall()
    return all(state in TERMINAL_STATES for (state,) in states)


def earlier_jobs(conn: Connection, suite_id: int) -> list[EarlierJob]:
    with conn.cursor(row_factory=class_row(EarlierJob)) as cursor:
        return cursor.execute(
            """
            SELECT suite_job.job_id, job.kind, suite_job.stage, job.state, EXISTS (
                       SELECT FROM keyhole.sweep_member JOIN keyhole.sweep ON sweep.id = sweep_id
                       WHERE sweep.suite_id = suite_job.suite_id AND sweep_member.job_id = suite_job.job_id
                         AND stopped IS NOT NULL AND job.state = 'cancelled') AS stopped
            FROM keyhole.suite_job JOIN keyhole.job ON job.id = suite_job.job_id
            WHERE suite_job.suite_id = %s ORDER BY position
            """,
            (suite_id,),
        ).fetchall()


def runs_that_succeeded(conn: Connection, suite_id: int) -> list[int]:
    """Runs of the suite's training jobs, in the order of the jobs."""
    rows = conn.execute(
        """
        SELECT run.id FROM keyhole.suite_job JOIN keyhole.job ON job.id = job_id
        JOIN keyhole.run ON run.job_id = job.id
        WHERE suite_id = %s AND job.state = 'succeeded' ORDER BY position
        """,
        (suite_id,),
    )
    return [row[0] for row in rows]


def set_submitted(conn: Connection, suite_id: int, number: int) -> None:
    conn.execute(
        "UPDATE keyhole.suite_stage SET state = 'submitted', detail = NULL, submitted_at = clock_timestamp() "
        "WHERE suite_id = %s AND number = %s",
        (suite_id, number),
    )


def skip(conn: Connection, suite_id: int, number: int, reason: str) -> None:
    """Skip the stage if it still waits."""
    conn.execute(
        "UPDATE keyhole.suite_stage SET state = 'skipped', detail = %s "
        "WHERE suite_id = %s AND number = %s AND state = 'waiting'",
        (reason, suite_id, number),
    )


def keep_waiting(conn: Connection, suite_id: int, number: int, problem: str) -> None:
    """Tell what keeps a stage whose turn has come from being submitted."""
    conn.execute(
        "UPDATE keyhole.suite_stage SET detail = %s WHERE suite_id = %s AND number = %s AND state = 'waiting'",
        (problem, suite_id, number),
    )


def skip_waiting(conn: Connection, suite_id: int, reason: str) -> None:
    """Skip all stages of a suite that wait; a submission that is under way ends first."""
    conn.execute(
        "UPDATE keyhole.suite_stage SET state = 'skipped', detail = %s WHERE suite_id = %s AND state = 'waiting'",
        (reason, suite_id),
    )


def wait_again(conn: Connection, job_id: int) -> None:
    """Let stages that were skipped wait again after a job of a stage before them, which is being retried."""
    conn.execute(
        """
        UPDATE keyhole.suite_stage SET state = 'waiting', detail = NULL
        FROM keyhole.suite_job
        WHERE suite_job.job_id = %s AND suite_job.suite_id = suite_stage.suite_id AND stage < number
          AND state = 'skipped'
        """,
        (job_id,),
    )
