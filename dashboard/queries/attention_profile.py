"""Heads of attention_profile jobs, Table 5, and single queries of one head with their text."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["lowest entropy", "highest entropy", "largest weight", "largest weight far away"]


@dataclass(frozen=True)
class HeadProfile:
    """Means over a head's queries, and its scores as a head type."""

    job_id: int
    layer: int
    head: int
    entropy_nats: float | None
    top_weight: float | None
    self_weight: float | None
    previous_weight: float | None
    local_mass: float | None
    sink_mass: float | None
    no_key_mass: float | None
    induction_score: float | None
    duplicate_score: float | None
    previous_score: float | None


@dataclass(frozen=True)
class Table5:
    """Means over the heads of a job, and how many heads lie above the thresholds asked for."""

    job_id: int
    heads: int
    mean_entropy_nats: float | None
    mean_top_weight: float | None
    mean_local_mass: float | None
    heads_local: int
    heads_spread_out: int


@dataclass(frozen=True)
class ProfileRow:
    """One query of a head, and the key that gets most of its weight, each with its token and the text around it."""

    sequence: int
    query: int
    entropy_nats: float
    top_weight: float
    top_key: int
    before: str | None
    token: str | None
    top_before: str | None
    top_token: str | None
    top_after: str | None


HEADS = """
SELECT * FROM analysis.attention_profile_heads
WHERE job_id = ANY(%(jobs)s)
ORDER BY job_id, layer, head"""

TABLE_5 = """
SELECT job_id, count(*) AS heads,
       avg(entropy_nats) AS mean_entropy_nats, avg(top_weight) AS mean_top_weight, avg(local_mass) AS mean_local_mass,
       count(*) FILTER (WHERE local_mass > %(local)s) AS heads_local,
       count(*) FILTER (WHERE entropy_nats > %(entropy)s) AS heads_spread_out
FROM analysis.attention_profile_heads
WHERE job_id = ANY(%(jobs)s)
GROUP BY job_id ORDER BY job_id"""

_ORDERS: dict[Order, tuple[str, str]] = {
    "lowest entropy": ("TRUE", "entropy_nats"),
    "highest entropy": ("TRUE", "entropy_nats DESC"),
    "largest weight": ("TRUE", "top_weight DESC"),
    # on none of the eight nearest keys, and not on the first
    "largest weight far away": ("top_key > 0 AND top_key < query - 7", "top_weight DESC"),
}

_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, entropy_nats, top_weight, top_key
    FROM analysis.attention_profile
    WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s AND {condition}
    ORDER BY {order}, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.query - %(before)s AND chosen.query - 1) AS before,
       (SELECT text FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.query) AS token,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.top_key - %(around)s AND chosen.top_key - 1) AS top_before,
       (SELECT text FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.top_key) AS top_token,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.top_key + 1 AND chosen.top_key + %(around)s) AS top_after
FROM chosen
ORDER BY {order}, sequence, query"""


def heads(conn: psycopg.Connection, jobs: list[int]) -> list[HeadProfile]:
    with conn.cursor(row_factory=class_row(HeadProfile)) as cursor:
        return cursor.execute(HEADS.encode(), {"jobs": jobs}).fetchall()


def table_5(conn: psycopg.Connection, jobs: list[int], *, local: float, entropy: float) -> list[Table5]:
    """Table 5 of each job with these thresholds, from the summaries of its heads."""
    values = {"jobs": jobs, "local": local, "entropy": entropy}
    with conn.cursor(row_factory=class_row(Table5)) as cursor:
        return cursor.execute(TABLE_5.encode(), values).fetchall()


def head_rows(
    conn: psycopg.Connection,
    job_id: int,
    layer: int,
    head: int,
    order: Order,
    *,
    limit: int = 20,
    before: int = 12,
    around: int = 4,
) -> list[ProfileRow]:
    """The head's first queries in that order, with ``before`` tokens ahead of each and ``around`` beside its key."""
    values = {"job": job_id, "layer": layer, "head": head, "limit": limit, "before": before, "around": around}
    with conn.cursor(row_factory=class_row(ProfileRow)) as cursor:
        return cursor.execute(head_rows_sql(order).encode(), values).fetchall()


def head_rows_sql(order: Order) -> str:
    condition, ordering = _ORDERS[order]
    return _ROWS.format(condition=condition, order=ordering)
