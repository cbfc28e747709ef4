"""Heads, rows and transfer sweeps of calibration jobs."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["largest hard change", "smallest r", "largest soft change"]


@dataclass(frozen=True)
class HeadRatio:
    """Quartiles of r in one head, and the share of rows with r above 1.5."""

    job_id: int
    layer: int
    head: int
    q25: float | None
    median: float | None
    q75: float | None
    above: float | None
    n: int


HEADS = """
SELECT job_id, layer, head,
       max(q25) FILTER (WHERE metric = 'r') AS q25,
       max(median) FILTER (WHERE metric = 'r') AS median,
       max(q75) FILTER (WHERE metric = 'r') AS q75,
       max(mean) FILTER (WHERE metric = 'r_above_1_5') AS above,
       max(n) AS n
FROM analysis.head_summary
WHERE job_id = ANY(%(jobs)s) AND metric IN ('r', 'r_above_1_5')
GROUP BY job_id, layer, head
ORDER BY job_id, layer, head"""


@dataclass(frozen=True)
class RatioRow:
    """One query of a head with the text before it, its own token, and the token it had to predict."""

    sequence: int
    query: int
    r: float
    hard_norm: float
    soft_norm: float
    context: str | None
    token: str | None
    next_token: str | None


HEAD_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, r, hard_norm, soft_norm
    FROM analysis.calibration
    WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s AND r <> 'NaN'
    ORDER BY {order}, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.query - %(before)s AND chosen.query - 1) AS context,
       (SELECT text FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.query) AS token,
       (SELECT text FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.query + 1) AS next_token
FROM chosen
ORDER BY {order}, sequence, query"""

RowOrder = Literal["smallest r", "largest r", "strongest hard gradient"]
_ROW_ORDERS: dict[RowOrder, str] = {
    "smallest r": "r",
    "largest r": "r DESC",
    "strongest hard gradient": "hard_norm DESC",
}


@dataclass(frozen=True)
class Sweep:
    """One transfer sweep with the texts that end at its query and its two keys."""

    job_id: int
    layer: int
    head: int
    sequence: int
    query: int
    first_key: int
    second_key: int
    chosen: bool
    r: float
    sweep_range: float
    first_weight: float | None
    second_weight: float | None
    hard_loss_nats: float | None
    soft_loss_nats: float | None
    hard_change_nats: float
    soft_change_nats: float
    query_text: str | None
    next_token: str | None
    first_text: str | None
    second_text: str | None

    @property
    def place(self) -> tuple[int, int, int, int, int, int, int]:
        return self.job_id, self.layer, self.head, self.sequence, self.query, self.first_key, self.second_key


_TEXT = """
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE token.job_id = found.job_id AND token.sequence = found.sequence
          AND position BETWEEN {last} - %(before)s AND {last}) AS {name}"""
_SWEEPS = """
WITH found AS MATERIALIZED (
    SELECT * FROM analysis.transfer_sweep_change
    WHERE job_id = ANY(%(jobs)s) AND r <= %(most)s{conditions}
    ORDER BY {order}, job_id, layer, head, sequence, query, first_key, second_key
    LIMIT %(limit)s)
SELECT job_id, layer, head, sequence, query, first_key, second_key, chosen, r, sweep_range, first_weight,
       second_weight, hard_loss_nats, soft_loss_nats, hard_change_nats, soft_change_nats,
       (SELECT text FROM analysis.token
        WHERE token.job_id = found.job_id AND token.sequence = found.sequence
          AND position = found.query + 1) AS next_token,{texts}
FROM found
ORDER BY {order}, job_id, layer, head, sequence, query, first_key, second_key"""
_TEXTS = ",".join(
    _TEXT.format(last=f"found.{column}", name=name)
    for column, name in (("query", "query_text"), ("first_key", "first_text"), ("second_key", "second_text"))
)
_ORDERS: dict[Order, str] = {
    "largest hard change": "hard_change_nats DESC",
    "smallest r": "r",
    "largest soft change": "soft_change_nats DESC",
}
_OF_LAYER = " AND layer = %(layer)s"
_ONE = """ AND layer = %(layer)s AND head = %(head)s AND sequence = %(sequence)s AND query = %(query)s
      AND first_key = %(first_key)s AND second_key = %(second_key)s"""


@dataclass(frozen=True)
class Point:
    """Losses and weights at one value of c."""

    c: float
    hard_loss_nats: float
    soft_loss_nats: float
    first_weight: float
    second_weight: float


POINTS = """
SELECT c, hard_loss_nats, soft_loss_nats, first_weight, second_weight
FROM analysis.transfer_sweep
WHERE job_id = %(job)s AND layer = %(layer)s AND head = %(head)s AND sequence = %(sequence)s AND query = %(query)s
  AND first_key = %(first_key)s AND second_key = %(second_key)s
ORDER BY c"""


@dataclass(frozen=True)
class Token:
    position: int
    token_id: int
    text: str | None


_TOKENS = """
SELECT position, token_id, text FROM analysis.token
WHERE job_id = %(job)s AND sequence = %(sequence)s AND position BETWEEN %(first)s AND %(last)s
ORDER BY position"""


def heads(conn: psycopg.Connection, jobs: list[int]) -> list[HeadRatio]:
    with conn.cursor(row_factory=class_row(HeadRatio)) as cursor:
        return cursor.execute(HEADS.encode(), {"jobs": jobs}).fetchall()


def head_rows(
    conn: psycopg.Connection, job_id: int, layer: int, head: int, order: RowOrder, *, limit: int = 20, before: int = 12
) -> list[RatioRow]:
    values = {"job": job_id, "layer": layer, "head": head, "limit": limit, "before": before}
    with conn.cursor(row_factory=class_row(RatioRow)) as cursor:
        return cursor.execute(head_rows_sql(order).encode(), values).fetchall()


def head_rows_sql(order: RowOrder) -> str:
    return HEAD_ROWS.format(order=_ROW_ORDERS[order])


def sweeps(
    conn: psycopg.Connection,
    jobs: list[int],
    order: Order,
    *,
    layer: int | None = None,
    most: float = 1e30,
    limit: int = 50,
    before: int = 6,
) -> list[Sweep]:
    """Sweeps of rows with r up to ``most``, with ``before`` tokens of text ahead of query and keys."""
    values = {"jobs": jobs, "layer": layer, "most": most, "limit": limit, "before": before}
    with conn.cursor(row_factory=class_row(Sweep)) as cursor:
        return cursor.execute(sweeps_sql(order, layer).encode(), values).fetchall()


def sweeps_sql(order: Order, layer: int | None) -> str:
    return _SWEEPS.format(order=_ORDERS[order], conditions="" if layer is None else _OF_LAYER, texts=_TEXTS)


def one_sweep(conn: psycopg.Connection, place: tuple[int, ...], *, before: int = 6) -> Sweep | None:
    """The sweep at (job, layer, head, sequence, query, first key, second key)."""
    job_id, *rest = place
    names = ("layer", "head", "sequence", "query", "first_key", "second_key")
    values = {"jobs": [job_id], "most": "Infinity", "limit": 1, "before": before, **dict(zip(names, rest, strict=True))}
    with conn.cursor(row_factory=class_row(Sweep)) as cursor:
        return cursor.execute(_SWEEPS.format(order="r", conditions=_ONE, texts=_TEXTS).encode(), values).fetchone()


def point_values(sweep: Sweep) -> dict[str, int]:
    """Values of POINTS."""
    names = ("job", "layer", "head", "sequence", "query", "first_key", "second_key")
    return dict(zip(names, sweep.place, strict=True))


def points(conn: psycopg.Connection, sweep: Sweep) -> list[Point]:
    with conn.cursor(row_factory=class_row(Point)) as cursor:
        return cursor.execute(POINTS.encode(), point_values(sweep)).fetchall()


def tokens(conn: psycopg.Connection, job_id: int, sequence: int, first: int, last: int) -> list[Token]:
    with conn.cursor(row_factory=class_row(Token)) as cursor:
        values = {"job": job_id, "sequence": sequence, "first": first, "last": last}
        return cursor.execute(_TOKENS.encode(), values).fetchall()
