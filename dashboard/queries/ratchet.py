"""Heads of ratchet jobs, sources by attention weight, and single queries of one head with their text."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["lead grows most", "lead shrinks most", "odds grow most", "odds shrink most"]
Scope = Literal["model", "layer", "head"]

HEAD_STATISTICS = """
SELECT job_id, layer, head,
       max(mean) FILTER (WHERE metric = 'lead_grows') AS lead_grows,
       max(mean) FILTER (WHERE metric = 'lead_grows_elsewhere') AS lead_grows_elsewhere,
       max(mean) FILTER (WHERE metric = 'gain_top_positive') AS gain_top_positive,
       max(mean) FILTER (WHERE metric = 'odds_grow') AS odds_grow,
       max(mean) FILTER (WHERE metric = 'ratchets') AS ratchets,
       max(mean) FILTER (WHERE metric = 'top_is_first') AS top_is_first,
       max(mean) FILTER (WHERE metric = 'top_weight') AS top_weight
FROM analysis.head_summary
WHERE job_id = ANY(%(jobs)s)
GROUP BY job_id, layer, head
ORDER BY job_id, layer, head"""

# The metrics are means over heads and sequences of what a band holds: their ratios are shares of all its sources.
_BANDS = """
WITH held AS (
    SELECT job_id, substr(metric, 5, 1)::integer AS band,
           max(mean * (n - n_undefined)) FILTER (WHERE substr(metric, 7) = 'sources') AS sources,
           max(mean * (n - n_undefined)) FILTER (WHERE substr(metric, 7) = 'gain_positive') AS gain_positive,
           max(mean * (n - n_undefined)) FILTER (WHERE substr(metric, 7) = 'step_positive') AS step_positive,
           max(mean * (n - n_undefined)) FILTER (WHERE substr(metric, 7) = 'gain') AS gain
    FROM analysis.{view}
    WHERE job_id = ANY(%(jobs)s) AND starts_with(metric, 'band'){condition}
    GROUP BY job_id, band)
SELECT job_id, band, round(sources)::bigint AS sources, gain_positive / nullif(sources, 0) AS gain_positive,
       step_positive / nullif(sources, 0) AS step_positive, gain / nullif(sources, 0) AS gain
FROM held ORDER BY job_id, band"""
_SCOPES: dict[Scope, tuple[str, str]] = {
    "model": ("job_summary", ""),
    "layer": ("layer_summary", " AND layer = %(layer)s"),
    "head": ("head_summary", " AND layer = %(layer)s AND head = %(head)s"),
}

_ORDERS: dict[Order, str] = {
    "lead grows most": "gain_top - gain_runner_up DESC",
    "lead shrinks most": "gain_top - gain_runner_up",
    "odds grow most": "odds_growth_runner_up DESC",
    "odds shrink most": "odds_growth_runner_up",
}

_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, top_key, runner_up, log_odds_runner_up, log_odds_rest, gain_top, gain_runner_up,
           advantage_top, odds_growth_runner_up
    FROM analysis.ratchet
    WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s
      AND gain_top <> 'NaN' AND top_key >= %(least_key)s
    ORDER BY {order}, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*, before.text AS before, query.text AS token,
       top_before.text AS top_before, top.text AS top_token, runner.text AS runner_up_token
FROM chosen
LEFT JOIN LATERAL {before} AS before ON TRUE
LEFT JOIN LATERAL {token} AS query ON TRUE
LEFT JOIN LATERAL {top_before} AS top_before ON TRUE
LEFT JOIN LATERAL {top_token} AS top ON TRUE
LEFT JOIN LATERAL {runner_up_token} AS runner ON TRUE
ORDER BY {order}, sequence, query"""
_TEXT = """(
    SELECT string_agg(text, '' ORDER BY position) AS text FROM analysis.token
    WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position BETWEEN {first} AND {last})"""


@dataclass(frozen=True)
class HeadShares:
    """Shares of a head's queries, and the mean weight of their top key."""

    job_id: int
    layer: int
    head: int
    lead_grows: float | None
    lead_grows_elsewhere: float | None
    gain_top_positive: float | None
    odds_grow: float | None
    ratchets: float | None
    top_is_first: float | None
    top_weight: float | None


@dataclass(frozen=True)
class BandShares:
    """Of the sources of one attention band: how many there are, the shares that gain, and their mean gain."""

    job_id: int
    band: int
    sources: int | None
    gain_positive: float | None
    step_positive: float | None
    gain: float | None


@dataclass(frozen=True)
class RatchetRow:
    """One query of a head with its top key and runner-up; texts are None where the data set has bare token ids."""

    sequence: int
    query: int
    top_key: int
    runner_up: int
    log_odds_runner_up: float
    log_odds_rest: float
    gain_top: float
    gain_runner_up: float
    advantage_top: float
    odds_growth_runner_up: float
    before: str | None
    token: str | None
    top_before: str | None
    top_token: str | None
    runner_up_token: str | None


def head_shares(conn: psycopg.Connection, jobs: list[int]) -> list[HeadShares]:
    with conn.cursor(row_factory=class_row(HeadShares)) as cursor:
        return cursor.execute(HEAD_STATISTICS.encode(), {"jobs": jobs}).fetchall()


def bands_sql(scope: Scope) -> str:
    view, condition = _SCOPES[scope]
    return _BANDS.format(view=view, condition=condition)


def bands(conn: psycopg.Connection, jobs: list[int], scope: Scope, layer: int, head: int) -> list[BandShares]:
    """Bands of each job, of all its heads or of one layer or one head."""
    with conn.cursor(row_factory=class_row(BandShares)) as cursor:
        return cursor.execute(bands_sql(scope).encode(), {"jobs": jobs, "layer": layer, "head": head}).fetchall()


def rows_sql(order: Order) -> str:
    places = {
        "before": ("chosen.query - %(before)s", "chosen.query - 1"),
        "token": ("chosen.query", "chosen.query"),
        "top_before": ("chosen.top_key - %(around)s", "chosen.top_key - 1"),
        "top_token": ("chosen.top_key", "chosen.top_key"),
        "runner_up_token": ("chosen.runner_up", "chosen.runner_up"),
    }
    texts = {name: _TEXT.format(first=first, last=last) for name, (first, last) in places.items()}
    return _ROWS.format(order=_ORDERS[order], **texts)


def head_rows(
    conn: psycopg.Connection,
    job_id: int,
    layer: int,
    head: int,
    order: Order,
    *,
    least_key: int = 0,
    limit: int = 20,
    before: int = 12,
    around: int = 4,
) -> list[RatchetRow]:
    """The head's first queries in that order whose top key is at ``least_key`` or behind it."""
    values = {"job": job_id, "layer": layer, "head": head, "least_key": least_key}
    values |= {"limit": limit, "before": before, "around": around}
    with conn.cursor(row_factory=class_row(RatchetRow)) as cursor:
        return cursor.execute(rows_sql(order).encode(), values).fetchall()
