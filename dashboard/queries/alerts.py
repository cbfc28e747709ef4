"""Watches and the alerts that their rules raised."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from dashboard.queries.paging import Page, page_of, upwards

MOST_WATCHES = 100
MOST_CHECKPOINTS = 100

_WATCH = """
SELECT watch.id AS watch_id, watch.name, watch.target, watch.active, watch.ended, watch.problem, watch.probes,
       watch.dataset, watch.rules, watch.poll_s, watch.has_webhook, watch.submitted_by, watch.created_at,
       watch.looked_at, seen.models, seen.judged, seen.failed, raised.alerts, raised.unseen, met.places AS met_at
FROM analysis.watch
CROSS JOIN LATERAL (
    SELECT count(*) AS models, count(*) FILTER (WHERE judged) AS judged,
           count(*) FILTER (WHERE watch_model.problem IS NOT NULL) AS failed
    FROM analysis.watch_model WHERE watch_id = watch.id
) AS seen
CROSS JOIN LATERAL (
    SELECT count(*) AS alerts, count(*) FILTER (WHERE acknowledged_at IS NULL) AS unseen
    FROM analysis.alert WHERE watch_id = watch.id
) AS raised
CROSS JOIN LATERAL (SELECT count(*) AS places FROM analysis.watch_crossing WHERE watch_id = watch.id) AS met"""
WATCHES = f"""{_WATCH}
ORDER BY watch.active DESC, watch.id DESC LIMIT %(limit)s"""

RULES = """
SELECT rules.number - 1 AS number, rules.rule,
       (SELECT count(*) FROM analysis.alert WHERE watch_id = watch.id AND alert.rule = rules.number - 1) AS alerts,
       (SELECT count(*) FROM analysis.watch_crossing
        WHERE watch_id = watch.id AND watch_crossing.rule = rules.number - 1) AS met_at
FROM analysis.watch CROSS JOIN LATERAL jsonb_array_elements(watch.rules) WITH ORDINALITY AS rules (rule, number)
WHERE watch.id = %(watch)s ORDER BY number"""

CHECKPOINTS = """
SELECT source, run_id, step, suite_id, judged, problem, seen_at FROM analysis.watch_model
WHERE watch_id = %(watch)s ORDER BY seen_at DESC, step DESC LIMIT %(limit)s"""

_COLUMNS = """alert.id AS alert_id, alert.watch_id, alert.watch, alert.rule, alert.run_id, alert.job_id, alert.source,
       alert.step, alert.metric, alert.matrix, alert.layer, alert.head, alert.value, alert.threshold, alert.others,
       alert.message, alert.created_at, alert.deliveries, alert.delivered_at, alert.delivery_problem,
       alert.acknowledged_at, alert.acknowledged_by, watch.rules -> alert.rule::integer AS rule_of_watch"""
_FROM = "FROM analysis.alert JOIN analysis.watch ON watch.id = watch_id"
# by filter; those that are not given are left out, so that the statement shown is as short as it can be
_CONDITIONS = {
    "watch": "alert.watch_id = %(watch)s",
    "run": "alert.run_id = %(run)s",
    "job": "alert.job_id = %(job)s",
    "metric": "alert.metric = %(metric)s",
    "layer": "alert.layer = %(layer)s",
    "head": "alert.head = %(head)s",
}
_SEEN = {"no": "alert.acknowledged_at IS NULL", "yes": "alert.acknowledged_at IS NOT NULL"}


@dataclass(frozen=True)
class WatchLine:
    watch_id: int
    name: str
    target: str
    active: bool
    ended: str | None
    problem: str | None
    probes: list[str]
    dataset: str | None
    rules: list[dict[str, Any]]
    poll_s: float | None
    has_webhook: bool
    submitted_by: str | None
    created_at: datetime
    looked_at: datetime | None
    models: int
    judged: int
    failed: int
    alerts: int
    unseen: int
    met_at: int


@dataclass(frozen=True)
class RuleLine:
    number: int
    rule: dict[str, Any]
    alerts: int
    met_at: int


@dataclass(frozen=True)
class SeenCheckpoint:
    source: str
    run_id: int | None
    step: int | None
    suite_id: int | None
    judged: bool
    problem: str | None
    seen_at: datetime


@dataclass(frozen=True)
class AlertLine:
    alert_id: int
    watch_id: int
    watch: str
    rule: int
    run_id: int | None
    job_id: int | None
    source: str | None
    step: int | None
    metric: str
    matrix: str | None
    layer: int | None
    head: int | None
    value: float
    threshold: float
    others: int
    message: str
    created_at: datetime
    deliveries: int
    delivered_at: datetime | None
    delivery_problem: str | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    rule_of_watch: dict[str, Any]


@dataclass(frozen=True)
class Filters:
    """None means any; ``seen`` is yes or no."""

    watch: int | None = None
    run: int | None = None
    job: int | None = None
    metric: str | None = None
    layer: int | None = None
    head: int | None = None
    seen: str | None = None

    def given(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in _CONDITIONS if getattr(self, name) is not None}


@dataclass(frozen=True)
class Options:
    """What the filters offer."""

    runs: list[int]
    metrics: list[str]


def watches(conn: psycopg.Connection, limit: int = MOST_WATCHES) -> list[WatchLine]:
    """Those that look first, each the newest first."""
    with conn.cursor(row_factory=class_row(WatchLine)) as cursor:
        return cursor.execute(WATCHES.encode(), {"limit": limit}).fetchall()


def watch(conn: psycopg.Connection, number: int) -> WatchLine | None:
    with conn.cursor(row_factory=class_row(WatchLine)) as cursor:
        return cursor.execute(f"{_WATCH}\nWHERE watch.id = %(watch)s".encode(), {"watch": number}).fetchone()


def rules(conn: psycopg.Connection, watch: int) -> list[RuleLine]:
    with conn.cursor(row_factory=class_row(RuleLine)) as cursor:
        return cursor.execute(RULES.encode(), {"watch": watch}).fetchall()


def checkpoints(conn: psycopg.Connection, watch: int, limit: int = MOST_CHECKPOINTS) -> list[SeenCheckpoint]:
    """The checkpoints it saw last."""
    with conn.cursor(row_factory=class_row(SeenCheckpoint)) as cursor:
        return cursor.execute(CHECKPOINTS.encode(), {"watch": watch, "limit": limit}).fetchall()


def statement(filters: Filters, *more: str, rising: bool = False) -> str:
    """The query of the alerts that match, with ``limit`` left open."""
    conditions = [_CONDITIONS[name] for name in filters.given()]
    conditions += [_SEEN[filters.seen]] if filters.seen in _SEEN else []
    where = f"\nWHERE {' AND '.join([*conditions, *more])}" if conditions or more else ""
    order = "ASC" if rising else "DESC"
    return f"SELECT {_COLUMNS}\n{_FROM}{where}\nORDER BY alert.id {order} LIMIT %(limit)s"  # conditions written above


def alert_page(
    conn: psycopg.Connection, filters: Filters, *, before: int | None = None, after: int | None = None, limit: int = 25
) -> Page[AlertLine]:
    """Alerts with numbers below ``before``, or else those next above ``after``, or else the newest."""
    values: dict[str, Any] = {**filters.given(), "before": before, "after": after, "limit": limit + 1}
    rising = upwards(before, after)
    beyond = ["alert.id > %(after)s"] if rising else ["alert.id < %(before)s"] if before is not None else []
    with conn.cursor(row_factory=class_row(AlertLine)) as cursor:
        lines = cursor.execute(statement(filters, *beyond, rising=rising).encode(), values).fetchall()
    return page_of(lines, limit, before=before, after=after)


def alert(conn: psycopg.Connection, number: int) -> AlertLine | None:
    with conn.cursor(row_factory=class_row(AlertLine)) as cursor:
        query = statement(Filters(), "alert.id = %(alert)s")
        return cursor.execute(query.encode(), {"alert": number, "limit": 1}).fetchone()


def options(conn: psycopg.Connection) -> Options:
    """Of the newest alerts: a list of all runs that ever raised one would be no filter."""
    rows = conn.execute(
        b"SELECT DISTINCT run_id, metric FROM (SELECT run_id, metric FROM analysis.alert ORDER BY id DESC LIMIT 5000) "
        b"AS newest"
    ).fetchall()
    runs = sorted({run for run, _ in rows if run is not None}, reverse=True)
    return Options(runs, sorted({metric for _, metric in rows}))


def any_alert(conn: psycopg.Connection) -> bool:
    return conn.execute("SELECT FROM analysis.alert LIMIT 1").fetchone() is not None
