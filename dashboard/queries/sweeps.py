"""Sweeps and their members."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

MOST_SWEEPS = 100

SWEEPS = """
SELECT sweep.id AS sweep_id, sweep.suite_id, sweep.name, sweep.model, sweep.dataset, sweep.axes, sweep.submitted_by,
       sweep.created_at, count(member.number) AS members,
       count(*) FILTER (WHERE member.state = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE member.state = 'failed') AS failed,
       count(*) FILTER (WHERE member.state = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE member.state = 'deleted') AS deleted,
       coalesce(sum(member.steps_done), 0)::bigint AS steps_done, coalesce(sum(member.steps), 0)::bigint AS steps,
       coalesce(array_agg(DISTINCT member.variant) FILTER (WHERE member.variant IS NOT NULL), '{}') AS variants,
       count(DISTINCT member.seed) AS seeds, min(member.final_validation_loss_nats) AS lowest_nats
FROM analysis.sweep LEFT JOIN analysis.sweep_member AS member ON member.sweep_id = sweep.id
WHERE strpos(lower(sweep.name), lower(%(text)s)) > 0 AND (%(sweep)s::int IS NULL OR sweep.id = %(sweep)s)
GROUP BY sweep.id, sweep.suite_id, sweep.name, sweep.model, sweep.dataset, sweep.axes, sweep.submitted_by,
         sweep.created_at
ORDER BY sweep.id DESC LIMIT %(limit)s"""

MEMBERS = """
SELECT number, job_id, run_id, variant, setting, seed, state, stopped, error_code, steps, steps_done,
       final_validation_loss_nats, best_validation_loss_nats, best_step
FROM analysis.sweep_member WHERE sweep_id = %(sweep)s ORDER BY number"""


@dataclass(frozen=True)
class SweepLine:
    sweep_id: int
    suite_id: int
    name: str
    model: str
    dataset: str
    axes: dict[str, Any] | None
    submitted_by: str | None
    created_at: datetime
    members: int
    succeeded: int
    failed: int
    cancelled: int
    deleted: int
    steps_done: int
    steps: int
    variants: list[str]
    seeds: int
    lowest_nats: float | None

    @property
    def ended(self) -> bool:
        return self.succeeded + self.failed + self.cancelled + self.deleted == self.members


@dataclass(frozen=True)
class Member:
    number: int
    job_id: int | None  # None if the job was deleted
    run_id: int | None
    variant: str
    setting: dict[str, Any]
    seed: int
    state: str  # of the job, or deleted
    stopped: str | None
    error_code: str | None
    steps: int | None
    steps_done: int | None
    final_validation_loss_nats: float | None
    best_validation_loss_nats: float | None
    best_step: int | None


def sweeps(conn: psycopg.Connection, text: str = "", limit: int = MOST_SWEEPS) -> list[SweepLine]:
    """Sweeps whose name holds the text, the newest first."""
    return _lines(conn, text=text, sweep=None, limit=limit)


def sweep(conn: psycopg.Connection, number: int) -> SweepLine | None:
    found = _lines(conn, text="", sweep=number, limit=1)
    return found[0] if found else None


def _lines(conn: psycopg.Connection, *, text: str, sweep: int | None, limit: int) -> list[SweepLine]:
    values = {"text": text.replace("\0", "").strip(), "sweep": sweep, "limit": limit}
    with conn.cursor(row_factory=class_row(SweepLine)) as cursor:
        return cursor.execute(SWEEPS.encode(), values).fetchall()


def members(conn: psycopg.Connection, number: int) -> list[Member]:
    """In the order in which they are trained."""
    with conn.cursor(row_factory=class_row(Member)) as cursor:
        return cursor.execute(MEMBERS.encode(), {"sweep": number}).fetchall()
