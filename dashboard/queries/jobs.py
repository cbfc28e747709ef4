"""Jobs with their attempts and events."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from dashboard.queries.paging import Page, page_of, upwards
from dashboard.queries.text import storable

LATEST_EVENTS = 200  # of a job's history on its page; the stored history has one event per shard


@dataclass(frozen=True)
class JobLine:
    """A job in the list."""

    job_id: int
    kind: str
    state: str
    phase: str
    label: str | None
    model: str
    dataset: str
    shards: int
    shards_done: int
    rows: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_s: float | None
    error_code: str | None


@dataclass(frozen=True)
class FinishedJob(JobLine):
    """A job whose results can be compared, with all in which two such jobs may differ."""

    model_identity: str
    dataset_identity: str
    parameters: dict[str, Any]
    device: str | None


@dataclass(frozen=True)
class Job(JobLine):
    """One job with all that analysts may see of it; ``now`` is the database's clock."""

    version: int
    priority: int
    submitted_by: str | None
    model_identity: str
    dataset_identity: str
    parameters: dict[str, Any]
    time_limit_s: int
    max_attempts: int
    crashes: int
    environment: dict[str, Any] | None
    checks: dict[str, Any] | None
    error_message: str | None
    error_hint: str | None
    error_traceback: str | None
    now: datetime


@dataclass(frozen=True)
class Attempt:
    number: int
    worker: str
    device: str
    started_at: datetime
    heartbeat_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    detail: str | None


@dataclass(frozen=True)
class Event:
    id: int
    at: datetime
    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Filters:
    """None or empty means any; ``text`` is searched in label, model and data set, or is a job's number."""

    kind: str | None = None
    state: str | None = None
    model: str | None = None
    text: str = ""


_LINE = """id AS job_id, kind, state, phase, label, model, dataset, shards, shards_done, rows,
       created_at, started_at, finished_at, duration_s, error_code"""

_JOB_PAGE = r"""
SELECT {line} FROM analysis.job
WHERE (%(kind)s::text IS NULL OR kind = %(kind)s)
  AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(model)s::text IS NULL OR model = %(model)s)
  AND (%(text)s = '' OR id::text = %(text)s OR concat_ws(E'\n', label, model, dataset) ILIKE %(pattern)s)
  AND (%(before)s::int IS NULL OR id < %(before)s)
  AND (%(before)s::int IS NOT NULL OR %(after)s::int IS NULL OR id > %(after)s)
ORDER BY id {direction}
LIMIT %(limit)s"""

_JOB = """
SELECT {line}, version, priority, submitted_by, model_identity, dataset_identity, parameters, time_limit_s,
       max_attempts, crashes, environment, checks, error_message, error_hint, error_traceback,
       clock_timestamp() AS now
FROM analysis.job WHERE id = %s"""

_FINISHED = """
SELECT {line}, model_identity, dataset_identity, parameters, environment ->> 'device' AS device
FROM analysis.job WHERE kind = %s AND state = 'succeeded'
ORDER BY id DESC LIMIT %s"""


def state_counts(conn: psycopg.Connection) -> dict[str, int]:
    """Jobs by state."""
    return dict(conn.execute("SELECT state, count(*) FROM analysis.job GROUP BY state").fetchall())


def models(conn: psycopg.Connection) -> list[str]:
    """Every model that a job was submitted for."""
    rows = conn.execute("SELECT DISTINCT model FROM analysis.job ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def job_page(
    conn: psycopg.Connection, filters: Filters, *, before: int | None = None, after: int | None = None, limit: int = 25
) -> Page[JobLine]:
    """Jobs with numbers below ``before``, or else those next above ``after``, or else the newest."""
    text = storable(filters.text).strip()
    pattern = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {
        "kind": storable(filters.kind),
        "state": storable(filters.state),
        "model": storable(filters.model),
        "text": text.removeprefix("#"),
        "pattern": f"%{pattern}%",
        "before": before,
        "after": after,
        "limit": limit + 1,
    }
    query = _JOB_PAGE.format(line=_LINE, direction="ASC" if upwards(before, after) else "DESC")
    with conn.cursor(row_factory=class_row(JobLine)) as cursor:
        lines = cursor.execute(query.encode(), values).fetchall()
    return page_of(lines, limit, before=before, after=after)


def job(conn: psycopg.Connection, job_id: int) -> Job | None:
    with conn.cursor(row_factory=class_row(Job)) as cursor:
        return cursor.execute(_JOB.format(line=_LINE).encode(), (job_id,)).fetchone()


def attempts(conn: psycopg.Connection, job_id: int) -> list[Attempt]:
    """The job's attempts, the last first."""
    with conn.cursor(row_factory=class_row(Attempt)) as cursor:
        return cursor.execute(
            """SELECT number, worker, device, started_at, heartbeat_at, ended_at, outcome, detail
               FROM analysis.attempt WHERE job_id = %s ORDER BY number DESC LIMIT 100""",
            (job_id,),
        ).fetchall()


def events(conn: psycopg.Connection, job_id: int, limit: int = LATEST_EVENTS) -> list[Event]:
    """The job's latest events, the last first."""
    with conn.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(
            "SELECT id, at, type, data FROM analysis.job_event WHERE job_id = %s ORDER BY id DESC LIMIT %s",
            (job_id, limit),
        ).fetchall()


def events_of_types(conn: psycopg.Connection, job_id: int, types: Sequence[str]) -> list[Event]:
    """All of the job's events of these types, the first first; meant for types that are few in any job."""
    with conn.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(
            "SELECT id, at, type, data FROM analysis.job_event WHERE job_id = %s AND type = ANY(%s) ORDER BY id",
            (job_id, list(types)),
        ).fetchall()


def finished_jobs(conn: psycopg.Connection, kind: str, limit: int = 500) -> list[FinishedJob]:
    """Succeeded jobs of a kind, the newest first."""
    with conn.cursor(row_factory=class_row(FinishedJob)) as cursor:
        return cursor.execute(_FINISHED.format(line=_LINE).encode(), (kind, limit)).fetchall()
