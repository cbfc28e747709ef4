"""Alerts: raised, listed, acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection, sql
from psycopg.rows import class_row


@dataclass(frozen=True)
class NewAlert:
    watch_id: int
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


@dataclass(frozen=True)
class AlertRow(NewAlert):
    id: int
    created_at: datetime
    deliver_at: datetime | None
    deliveries: int
    delivered_at: datetime | None
    delivery_problem: str | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    # of its watch
    watch_name: str
    rules: list[Any]


@dataclass(frozen=True)
class AlertFilter:
    """Conditions of a listing; None means any."""

    watch_id: int | None = None
    run_id: int | None = None
    job_id: int | None = None
    metric: str | None = None
    layer: int | None = None
    head: int | None = None
    since: datetime | None = None
    acknowledged: bool | None = None


SELECT = """
SELECT alert.id, alert.watch_id, alert.rule, alert.run_id, alert.job_id, alert.source, alert.step, alert.metric,
       alert.matrix, alert.layer, alert.head, alert.value, alert.threshold, alert.others, alert.message,
       alert.created_at, alert.deliver_at, alert.deliveries, alert.delivered_at, alert.delivery_problem,
       alert.acknowledged_at, api_token.name AS acknowledged_by, watch.name AS watch_name,
       watch.body -> 'rules' AS rules
FROM keyhole.alert JOIN keyhole.watch ON watch.id = watch_id
LEFT JOIN keyhole.api_token ON api_token.id = acknowledged_by
"""


def insert(conn: Connection, alerts: Sequence[NewAlert], *, deliver: bool) -> int:
    """Store what was raised; an alert of the same rule at the same place and step is not raised twice.

    Returns how many were new. ``deliver`` lets the webhook of the watch get them.
    """
    stored = 0
    for new in alerts:
        stored += conn.execute(
            """
            INSERT INTO keyhole.alert (watch_id, rule, run_id, job_id, source, step, metric, matrix, layer, head, value,
                threshold, others, message, deliver_at)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, CASE WHEN %s THEN clock_timestamp() END)
            ON CONFLICT DO NOTHING
            """,
            (
                new.watch_id,
                new.rule,
                new.run_id,
                new.job_id,
                new.source,
                new.step,
                new.metric,
                new.matrix,
                new.layer,
                new.head,
                new.value,
                new.threshold,
                new.others,
                new.message,
                deliver,
            ),
        ).rowcount
    return stored


def page(
    conn: Connection, condition: AlertFilter, *, before_id: int | None = None, after_id: int | None = None, limit: int
) -> list[AlertRow]:
    """Alerts newest first below ``before_id``; or, with ``after_id``, oldest first above it."""
    clauses: list[sql.Composable] = []
    values: dict[str, Any] = {"limit": limit}

    def where(clause: str, **value: Any) -> None:
        clauses.append(sql.SQL(clause))  # type: ignore[arg-type]  # the clauses below are literals
        values.update(value)

    if before_id is not None:
        where("alert.id < %(before_id)s", before_id=before_id)
    if after_id is not None:
        where("alert.id > %(after_id)s", after_id=after_id)
    if condition.watch_id is not None:
        where("alert.watch_id = %(watch_id)s", watch_id=condition.watch_id)
    if condition.run_id is not None:
        where("alert.run_id = %(run_id)s", run_id=condition.run_id)
    if condition.job_id is not None:
        where("alert.job_id = %(job_id)s", job_id=condition.job_id)
    if condition.metric is not None:
        where("alert.metric = %(metric)s", metric=condition.metric)
    if condition.layer is not None:
        where("alert.layer = %(layer)s", layer=condition.layer)
    if condition.head is not None:
        where("alert.head = %(head)s", head=condition.head)
    if condition.since is not None:
        where("alert.created_at >= %(since)s", since=condition.since)
    if condition.acknowledged is not None:
        where("(alert.acknowledged_at IS NOT NULL) = %(acknowledged)s", acknowledged=condition.acknowledged)
    query = sql.SQL(SELECT)
    if clauses:
        query += sql.SQL("WHERE ") + sql.SQL(" AND ").join(clauses)
    order = "ASC" if after_id is not None else "DESC"
    query += sql.SQL(" ORDER BY alert.id " + order + " LIMIT %(limit)s")  # type: ignore[arg-type]  # one of two words
    with conn.cursor(row_factory=class_row(AlertRow)) as cursor:
        return cursor.execute(query, values).fetchall()


def acknowledge(conn: Connection, alert_ids: Sequence[int], watch_id: int | None, token_id: int | None) -> int:
    """Mark alerts of these numbers, and all of a watch so far, as seen; returns how many were not yet."""
    return conn.execute(
        """
        UPDATE keyhole.alert SET acknowledged_at = clock_timestamp(), acknowledged_by = %s
        WHERE (id = ANY(%s) OR watch_id = %s::integer) AND acknowledged_at IS NULL
        """,
        (token_id, list(alert_ids), watch_id),
    ).rowcount


def by_rule(conn: Connection, watch_ids: Sequence[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """By watch and rule: alerts raised, and places where the rule is met now."""
    rows = conn.execute(
        """
        SELECT watch_id, rule, sum(alerts)::integer, sum(met)::integer FROM (
            SELECT watch_id, rule, count(*) AS alerts, 0 AS met
            FROM keyhole.alert WHERE watch_id = ANY(%(watches)s) GROUP BY watch_id, rule
            UNION ALL
            SELECT watch_id, rule, 0, count(*)
            FROM keyhole.watch_crossing WHERE watch_id = ANY(%(watches)s) GROUP BY watch_id, rule
        ) AS counted GROUP BY watch_id, rule
        """,
        {"watches": list(watch_ids)},
    )
    return {(watch_id, rule): (alerts, met) for watch_id, rule, alerts, met in rows}
