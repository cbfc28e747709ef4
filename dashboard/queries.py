"""The dashboard's SQL, as the role ``analyst`` over the views of the schema ``analysis``.

Lists and charts read ``job`` and the summaries only. The one function that touches a per-query table is ``head_rows``,
for a single head of a single job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, overload

import psycopg
from psycopg.rows import class_row

from dashboard.summaries import Summary

LATEST_EVENTS = 200  # of a job's history on its page; the stored history has one event per shard

Order = Literal["largest D_a", "largest D_c", "D_c above D_a"]


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


@dataclass(frozen=True)
class Page:
    """One page of the list, newest first; ``older`` and ``newer`` say whether there are jobs beyond it."""

    lines: list[JobLine]
    older: bool
    newer: bool


@dataclass(frozen=True)
class HeadRow:
    """One query of a head with the text before it and the query's own token."""

    sequence: int
    query: int
    log10_d_a: float
    log10_d_c: float
    context: str | None
    token: str | None


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

_SUMMARIES = """
SELECT job_id, metric, {layer} AS layer, {head} AS head, n, n_infinite, n_undefined, mean, sd, minimum,
       q01, q05, q25, median, q75, q95, q99, maximum, histogram_low, histogram_width, histogram
FROM analysis.{view}
WHERE job_id = ANY(%(jobs)s) AND metric = ANY(%(metrics)s)"""
_NONE = "NULL::smallint"

JOB_SUMMARIES = _SUMMARIES.format(view="job_summary", layer=_NONE, head=_NONE) + "\nORDER BY job_id, metric"
LAYER_SUMMARIES = (
    _SUMMARIES.format(view="layer_summary", layer="layer", head=_NONE) + "\nORDER BY job_id, metric, layer"
)
ONE_HEAD = (
    _SUMMARIES.format(view="head_summary", layer="layer", head="head")
    + " AND layer = %(layer)s AND head = %(head)s\nORDER BY job_id, metric"
)

HEAD_STATISTICS = """
SELECT job_id, layer, head,
       max(median) FILTER (WHERE metric = 'log10_d_a') AS log10_d_a,
       max(median) FILTER (WHERE metric = 'log10_d_c') AS log10_d_c,
       max(mean) FILTER (WHERE metric = 'd_a_exceeds_d_c') AS share,
       max(n) AS n
FROM analysis.head_summary
WHERE job_id = ANY(%(jobs)s)
GROUP BY job_id, layer, head
ORDER BY job_id, layer, head"""

_ORDERS: dict[Order, tuple[str, str]] = {
    "largest D_a": ("TRUE", "log10_d_a DESC"),
    "largest D_c": ("log10_d_c <> 'NaN'", "log10_d_c DESC"),
    "D_c above D_a": ("log10_d_c <> 'NaN' AND log10_d_c > log10_d_a", "log10_d_c - log10_d_a DESC"),
}

HEAD_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, log10_d_a, log10_d_c
    FROM analysis.gradient_scale
    WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s AND {condition}
    ORDER BY {order}, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.query - %(before)s AND chosen.query - 1) AS context,
       (SELECT text FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.query) AS token
FROM chosen
ORDER BY {order}, sequence, query"""


def state_counts(conn: psycopg.Connection) -> dict[str, int]:
    """Jobs by state."""
    return dict(conn.execute("SELECT state, count(*) FROM analysis.job GROUP BY state").fetchall())


def models(conn: psycopg.Connection) -> list[str]:
    """Every model that a job was submitted for."""
    rows = conn.execute("SELECT DISTINCT model FROM analysis.job ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def job_page(
    conn: psycopg.Connection, filters: Filters, *, before: int | None = None, after: int | None = None, limit: int = 25
) -> Page:
    """Jobs with numbers below ``before``, or else those next above ``after``, or else the newest."""
    text = _storable(filters.text).strip()
    pattern = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {
        "kind": _storable(filters.kind),
        "state": _storable(filters.state),
        "model": _storable(filters.model),
        "text": text.removeprefix("#"),
        "pattern": f"%{pattern}%",
        "before": before,
        "after": after,
        "limit": limit + 1,
    }
    upwards = before is None and after is not None
    query = _JOB_PAGE.format(line=_LINE, direction="ASC" if upwards else "DESC")
    with conn.cursor(row_factory=class_row(JobLine)) as cursor:
        lines = cursor.execute(query.encode(), values).fetchall()
    more = len(lines) > limit
    lines = lines[:limit]
    if upwards:
        return Page(lines[::-1], older=True, newer=more)
    return Page(lines, older=more, newer=before is not None)


@overload
def _storable(text: str) -> str: ...
@overload
def _storable(text: None) -> None: ...
def _storable(text: str | None) -> str | None:
    """The text as it could stand in the database: an address may have NUL characters (``%00``), which no row has."""
    return text.replace("\0", "") if text else text


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


def summaries(conn: psycopg.Connection, query: str, **values: object) -> list[Summary]:
    """Rows of JOB_SUMMARIES, LAYER_SUMMARIES or ONE_HEAD."""
    with conn.cursor(row_factory=class_row(Summary)) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


@dataclass(frozen=True)
class HeadStatistics:
    """Medians and the share of rows with D_a > D_c of one head."""

    job_id: int
    layer: int
    head: int
    log10_d_a: float | None
    log10_d_c: float | None
    share: float | None
    n: int


def head_statistics(conn: psycopg.Connection, jobs: list[int]) -> list[HeadStatistics]:
    with conn.cursor(row_factory=class_row(HeadStatistics)) as cursor:
        return cursor.execute(HEAD_STATISTICS.encode(), {"jobs": jobs}).fetchall()


def extent(conn: psycopg.Connection, jobs: list[int]) -> tuple[list[int], list[int]]:
    """All layers and all heads that any of the jobs has."""
    row = conn.execute(
        """SELECT array_agg(DISTINCT layer ORDER BY layer), array_agg(DISTINCT head ORDER BY head)
           FROM analysis.head_summary WHERE job_id = ANY(%s)""",
        (jobs,),
    ).fetchone()
    return (row[0] or [], row[1] or []) if row else ([], [])


def head_rows(
    conn: psycopg.Connection, job_id: int, layer: int, head: int, order: Order, *, limit: int = 20, before: int = 12
) -> list[HeadRow]:
    """The head's first rows in that order, with ``before`` tokens of text ahead of each query."""
    values = {"job": job_id, "layer": layer, "head": head, "limit": limit, "before": before}
    with conn.cursor(row_factory=class_row(HeadRow)) as cursor:
        return cursor.execute(head_rows_sql(order).encode(), values).fetchall()


def head_rows_sql(order: Order) -> str:
    condition, ordering = _ORDERS[order]
    return HEAD_ROWS.format(condition=condition, order=ordering)


def as_text(query: str, **values: object) -> str:
    """The statement with its values written in, as it can be pasted into ``keyhole sql`` or psql."""
    text = query.strip()
    for name, value in values.items():
        text = text.replace(f"%({name})s", _literal(value))
    return text + ";"


def _literal(value: object) -> str:
    if isinstance(value, list | tuple):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
