"""Heads of entropy_bound jobs, and the sequences of one head."""

from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row


@dataclass(frozen=True)
class HeadBound:
    """A row of analysis.entropy_bound_heads."""

    job_id: int
    layer: int
    head: int
    entropy_nats: float | None
    entropy_min_nats: float | None
    log10_bound: float | None
    log10_product_bound: float | None
    gap_nats: float | None
    gap_min_nats: float | None
    tightness: float | None
    sigma: float | None
    sigma_product: float | None
    weight_norm: float | None
    input_norm: float | None
    obstacles: int | None
    top_1: float | None
    top_8: float | None
    top_5_percent: float | None
    stable_rank: float | None
    effective_rank: float | None
    rank_rows: int | None


HEADS = """
SELECT * FROM analysis.entropy_bound_heads
WHERE job_id = ANY(%(jobs)s)
ORDER BY job_id, layer, head"""

SEQUENCES = """
SELECT * FROM analysis.entropy_bound
WHERE job_id = ANY(%(jobs)s) AND layer = %(layer)s AND head = %(head)s
ORDER BY job_id, sequence
LIMIT %(limit)s"""


def heads(conn: psycopg.Connection, jobs: list[int]) -> list[HeadBound]:
    with conn.cursor(row_factory=class_row(HeadBound)) as cursor:
        return cursor.execute(HEADS.encode(), {"jobs": jobs}).fetchall()


def sequences(
    conn: psycopg.Connection, jobs: list[int], layer: int, head: int, *, limit: int = 100
) -> list[dict[str, object]]:
    """The first rows of one head, with the names of their columns."""
    with conn.cursor() as cursor:
        cursor.execute(SEQUENCES.encode(), {"jobs": jobs, "layer": layer, "head": head, "limit": limit})
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
