"""Heads of jacobian_spectrum jobs, their mean relative spectra, and single queries of one head with their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Site = tuple[int, int]  # layer, head
Order = Literal["largest effective rank", "smallest effective rank", "largest singular value"]

HEADS = """
SELECT job_id, layer, head,
       max(n - n_undefined) FILTER (WHERE metric = 'effective_rank') AS queries,
       max(median) FILTER (WHERE metric = 'effective_rank') AS effective_rank,
       max(maximum) FILTER (WHERE metric = 'effective_rank') AS largest_effective_rank,
       max(mean) FILTER (WHERE metric = 'effective_rank_below_10') AS share_below_10,
       max(median) FILTER (WHERE metric = 'effective_rank_sigma') AS effective_rank_sigma,
       max(median) FILTER (WHERE metric = 'participation_ratio') AS participation_ratio,
       max(median) FILTER (WHERE metric = 'modes_above_1e_2') AS modes_above_1e_2,
       max(median) FILTER (WHERE metric = 'modes_above_1e_3') AS modes_above_1e_3,
       max(median) FILTER (WHERE metric = 'top_attention') AS top_attention
FROM analysis.head_summary
WHERE job_id = ANY(%(jobs)s)
GROUP BY job_id, layer, head
ORDER BY job_id, layer, head"""

MODES = """
SELECT job_id, layer, head, mode, sum(queries)::bigint AS queries,
       sum(mean::float8 * queries) / sum(queries) AS mean, avg(q05) AS q05, avg(median) AS median, avg(q95) AS q95
FROM analysis.jacobian_mode
WHERE job_id = ANY(%(jobs)s) AND queries > 0
  AND (layer, head) IN (SELECT * FROM unnest(%(layers)s::int[], %(heads)s::int[]))
GROUP BY job_id, layer, head, mode
ORDER BY job_id, layer, head, mode"""

_ORDERS: dict[Order, str] = {
    "largest effective rank": "effective_rank DESC",
    "smallest effective rank": "effective_rank",
    "largest singular value": "sigma_max DESC",
}

HEAD_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, effective_rank, participation_ratio, modes_above_1e_3, sigma_max, top_attention
    FROM analysis.jacobian_spectrum
    WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s AND effective_rank <> 'NaN'
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
class HeadSpectrum:
    """One head: medians over its queries, the largest effective rank, and the share of queries where it is below 10."""

    job_id: int
    layer: int
    head: int
    queries: int
    effective_rank: float | None
    largest_effective_rank: float | None
    share_below_10: float | None
    effective_rank_sigma: float | None
    participation_ratio: float | None
    modes_above_1e_2: float | None
    modes_above_1e_3: float | None
    top_attention: float | None

    @property
    def site(self) -> Site:
        return self.layer, self.head


@dataclass(frozen=True)
class Mode:
    """σ_r/σ_max of one mode of a head: mean over all queries; quantiles are means of those of each sequence."""

    job_id: int
    layer: int
    head: int
    mode: int
    queries: int
    mean: float
    q05: float
    median: float
    q95: float


@dataclass(frozen=True)
class QueryRow:
    """One query of a head with the text before it and the query's own token."""

    sequence: int
    query: int
    effective_rank: float
    participation_ratio: float
    modes_above_1e_3: int
    sigma_max: float
    top_attention: float
    context: str | None
    token: str | None


def heads(conn: psycopg.Connection, jobs: list[int]) -> list[HeadSpectrum]:
    with conn.cursor(row_factory=class_row(HeadSpectrum)) as cursor:
        return cursor.execute(HEADS.encode(), {"jobs": jobs}).fetchall()


def modes(conn: psycopg.Connection, jobs: list[int], sites: Sequence[Site]) -> list[Mode]:
    with conn.cursor(row_factory=class_row(Mode)) as cursor:
        return cursor.execute(MODES.encode(), mode_values(jobs, sites)).fetchall()


def mode_values(jobs: list[int], sites: Sequence[Site]) -> dict[str, list[int]]:
    return {"jobs": jobs, "layers": [layer for layer, _ in sites], "heads": [head for _, head in sites]}


def head_rows(
    conn: psycopg.Connection, job_id: int, site: Site, order: Order, *, limit: int = 20, before: int = 12
) -> list[QueryRow]:
    """The head's first rows in that order, with ``before`` tokens of text ahead of each query."""
    values = {"job": job_id, "layer": site[0], "head": site[1], "limit": limit, "before": before}
    with conn.cursor(row_factory=class_row(QueryRow)) as cursor:
        return cursor.execute(head_rows_sql(order).encode(), values).fetchall()


def head_rows_sql(order: Order) -> str:
    return HEAD_ROWS.format(order=_ORDERS[order])
