"""Heads of gradient_scale jobs, and single queries of one head with their text."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["largest D_a", "largest D_c", "D_c above D_a"]


@dataclass(frozen=True)
class HeadRow:
    """One query of a head with the text before it and the query's own token."""

    sequence: int
    query: int
    log10_d_a: float
    log10_d_c: float
    context: str | None
    token: str | None


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
