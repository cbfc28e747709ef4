"""Tokens whose loss a change of routing raises or lowers most, with the text around them."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["loss raised most", "loss lowered most"]

_ORDERS: dict[Order, str] = {"loss raised most": "DESC", "loss lowered most": "ASC"}

_TOKENS = """
WITH chosen AS MATERIALIZED (
    SELECT sequence, query, loss_nats, extra_loss_nats
    FROM analysis.shared_routing
    WHERE job_id = %(job)s AND layer = %(layer)s AND extra_loss_nats <> 'NaN'
    ORDER BY extra_loss_nats {direction}, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.query + 1 - %(before)s AND chosen.query) AS before,
       (SELECT coalesce(text, '#' || token_id) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence AND position = chosen.query + 1) AS target,
       (SELECT string_agg(text, '' ORDER BY position) FROM analysis.token
        WHERE job_id = %(job)s AND token.sequence = chosen.sequence
          AND position BETWEEN chosen.query + 2 AND chosen.query + 1 + %(after)s) AS after
FROM chosen
ORDER BY extra_loss_nats {direction}, sequence, query"""


@dataclass(frozen=True)
class Token:
    """A predicted token, at position query + 1 of its sequence, with text on both sides."""

    sequence: int
    query: int
    loss_nats: float
    extra_loss_nats: float
    before: str | None
    target: str | None
    after: str | None


def tokens(
    conn: psycopg.Connection,
    job_id: int,
    layer: int,
    order: Order,
    *,
    limit: int = 20,
    before: int = 24,
    after: int = 6,
) -> list[Token]:
    """The layer's first tokens in that order, with ``before`` and ``after`` tokens of text around each."""
    values = {"job": job_id, "layer": layer, "limit": limit, "before": before, "after": after}
    with conn.cursor(row_factory=class_row(Token)) as cursor:
        return cursor.execute(tokens_sql(order).encode(), values).fetchall()


def tokens_sql(order: Order) -> str:
    return _TOKENS.format(direction=_ORDERS[order])
