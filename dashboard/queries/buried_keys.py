"""Qualifying keys of one buried_keys job, ranked; queries without any; and all that belongs to one query."""

from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg.rows import class_row

Order = Literal["largest score", "most buried", "most heads"]

_ORDERS: dict[Order, str] = {
    "largest score": "score DESC",
    "most buried": "attention_rank_smallest DESC, score DESC",
    "most heads": "heads DESC, score DESC",
}


@dataclass(frozen=True)
class Filters:
    """None and '' mean any; ``text`` is searched in the key's token, whatever its case."""

    layer: int | None = None
    direction: int | None = None  # 1 more attention, -1 less
    least_rank: int = 1  # in every agreeing head
    text: str = ""

    def values(self) -> dict[str, object]:
        text = self.text.replace("\0", "")  # an address may have it (``%00``), no row does
        escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        least_rank = self.least_rank if self.least_rank > 1 else None
        given = {"layer": self.layer, "direction": self.direction, "least_rank": least_rank}
        values: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        return values | ({"pattern": f"%{escaped}%"} if text else {})


@dataclass(frozen=True)
class KeyRow:
    """A qualifying key with its text and that of its query; texts are None where the data set has bare token ids."""

    layer: int
    sequence: int
    query: int
    key: int
    score: float
    direction: int
    heads: int
    attention_rank_smallest: int
    attention_rank_median: float
    attention_rank_largest: int
    largest_weight: float
    place: int
    query_context: str | None
    query_token: str | None
    key_context: str | None
    key_token: str | None


@dataclass(frozen=True)
class AbstainingRow:
    layer: int
    sequence: int
    query: int
    most_heads: int
    query_context: str | None
    query_token: str | None


@dataclass(frozen=True)
class TokenRow:
    """What became of all qualifying keys of one token text."""

    token: str
    keys: int
    share_less: float
    mean_score: float
    largest_score: float
    median_rank: float


@dataclass(frozen=True)
class Pick:
    head: int
    key: int
    advantage: float
    weight: float
    attention_rank: int
    place: int
    agrees: bool


@dataclass(frozen=True)
class Query:
    best_score: float
    qualifying: int
    most_heads: int


@dataclass(frozen=True)
class Token:
    position: int
    token_id: int
    text: str | None


_KEY_ROWS = """
WITH chosen AS MATERIALIZED (
    SELECT layer, sequence, query, key, score, direction, heads, attention_rank_smallest, attention_rank_median,
           attention_rank_largest, largest_weight, place
    FROM analysis.buried_key
    WHERE job_id = %(job)s{conditions}
    ORDER BY {order}, layer, sequence, query, place
    LIMIT %(limit)s)
SELECT chosen.*, at_query.context AS query_context, at_query.token AS query_token,
       at_key.context AS key_context, at_key.token AS key_token
FROM chosen
CROSS JOIN LATERAL (
    SELECT string_agg(text, '' ORDER BY position) FILTER (WHERE position < chosen.query) AS context,
           max(text) FILTER (WHERE position = chosen.query) AS token
    FROM analysis.token
    WHERE job_id = %(job)s AND token.sequence = chosen.sequence
      AND position BETWEEN chosen.query - %(before)s AND chosen.query) AS at_query
CROSS JOIN LATERAL (
    SELECT string_agg(text, '' ORDER BY position) FILTER (WHERE position < chosen.key) AS context,
           max(text) FILTER (WHERE position = chosen.key) AS token
    FROM analysis.token
    WHERE job_id = %(job)s AND token.sequence = chosen.sequence
      AND position BETWEEN chosen.key - %(before)s AND chosen.key) AS at_key
ORDER BY {order}, layer, sequence, query, place"""

_CONDITIONS = {
    "layer": " AND layer = %(layer)s",
    "direction": " AND direction = %(direction)s",
    "least_rank": " AND attention_rank_smallest >= %(least_rank)s",
    # OFFSET 0 and IS TRUE keep the tokens a set that is made once; else they are planned for few, and many are looked
    # up again for each text that matches (measured: a minute instead of 1.2 s, for 2 million tokens and a million keys)
    "pattern": """
      AND ((sequence, key) IN (
          SELECT sequence, position
          FROM (SELECT sequence, position, text FROM analysis.token WHERE job_id = %(job)s OFFSET 0) AS token
          WHERE text ILIKE %(pattern)s)) IS TRUE""",
}

_ABSTAINING = """
WITH chosen AS MATERIALIZED (
    SELECT layer, sequence, query, most_heads
    FROM analysis.buried_query
    WHERE job_id = %(job)s AND qualifying = 0{conditions}
    ORDER BY most_heads DESC, layer, sequence, query
    LIMIT %(limit)s)
SELECT chosen.*, at_query.context AS query_context, at_query.token AS query_token
FROM chosen
CROSS JOIN LATERAL (
    SELECT string_agg(text, '' ORDER BY position) FILTER (WHERE position < chosen.query) AS context,
           max(text) FILTER (WHERE position = chosen.query) AS token
    FROM analysis.token
    WHERE job_id = %(job)s AND token.sequence = chosen.sequence
      AND position BETWEEN chosen.query - %(before)s AND chosen.query) AS at_query
ORDER BY most_heads DESC, layer, sequence, query"""

_TOKENS = """
SELECT text AS token, count(*) AS keys, avg((direction < 0)::integer)::float8 AS share_less,
       avg(score) AS mean_score, max(score)::float8 AS largest_score,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY attention_rank_median) AS median_rank
FROM (SELECT * FROM analysis.buried_key WHERE job_id = %(job)s{conditions}) AS chosen
JOIN (SELECT sequence, position, text FROM analysis.token WHERE job_id = %(job)s AND text IS NOT NULL) AS token
  ON token.sequence = chosen.sequence AND token.position = chosen.key
GROUP BY text
ORDER BY keys DESC, largest_score DESC, token
LIMIT %(limit)s"""

KEYS_OF_QUERY = """
SELECT layer, sequence, query, key, score, direction, heads, attention_rank_smallest, attention_rank_median,
       attention_rank_largest, largest_weight, place,
       NULL AS query_context, NULL AS query_token, NULL AS key_context, NULL AS key_token
FROM analysis.buried_key
WHERE job_id = %(job)s AND layer = %(layer)s AND sequence = %(sequence)s AND query = %(query)s
ORDER BY place"""

PICKS_OF_QUERY = """
SELECT head, key, advantage, weight, attention_rank, place, agrees
FROM analysis.buried_pick
WHERE job_id = %(job)s AND layer = %(layer)s AND sequence = %(sequence)s AND query = %(query)s
ORDER BY head, place"""

_QUERY = """
SELECT best_score, qualifying, most_heads
FROM analysis.buried_query
WHERE job_id = %(job)s AND layer = %(layer)s AND sequence = %(sequence)s AND query = %(query)s"""

_SEQUENCE_TOKENS = """
SELECT position, token_id, text
FROM analysis.token
WHERE job_id = %(job)s AND sequence = %(sequence)s AND position <= %(last)s
ORDER BY position"""

MEASURED = """
SELECT array_agg(DISTINCT layer ORDER BY layer)
FROM analysis.layer_summary WHERE job_id = ANY(%(jobs)s) AND metric = 'abstains'"""


def key_rows_sql(filters: Filters, order: Order) -> str:
    return _KEY_ROWS.format(conditions=_conditions(filters), order=_ORDERS[order])


def tokens_sql(filters: Filters) -> str:
    return _TOKENS.format(conditions=_conditions(filters))


def abstaining_sql(layer: int | None) -> str:
    return _ABSTAINING.format(conditions="" if layer is None else _CONDITIONS["layer"])


def _conditions(filters: Filters) -> str:
    return "".join(_CONDITIONS[name] for name in filters.values())


def key_rows(
    conn: psycopg.Connection, job_id: int, filters: Filters, order: Order, *, limit: int = 50, before: int = 10
) -> list[KeyRow]:
    """The first qualifying keys in that order, with ``before`` tokens of text ahead of query and key."""
    values = {"job": job_id, "limit": limit, "before": before, **filters.values()}
    with conn.cursor(row_factory=class_row(KeyRow)) as cursor:
        return cursor.execute(key_rows_sql(filters, order).encode(), values).fetchall()


def abstaining_rows(
    conn: psycopg.Connection, job_id: int, layer: int | None, *, limit: int = 50, before: int = 10
) -> list[AbstainingRow]:
    """Queries without a qualifying key, those that came closest first."""
    values = {"job": job_id, "layer": layer, "limit": limit, "before": before}
    with conn.cursor(row_factory=class_row(AbstainingRow)) as cursor:
        return cursor.execute(abstaining_sql(layer).encode(), values).fetchall()


def token_rows(conn: psycopg.Connection, job_id: int, filters: Filters, *, limit: int = 50) -> list[TokenRow]:
    """Token texts by the number of qualifying keys that they are."""
    values = {"job": job_id, "limit": limit, **filters.values()}
    with conn.cursor(row_factory=class_row(TokenRow)) as cursor:
        return cursor.execute(tokens_sql(filters).encode(), values).fetchall()


def one_query(
    conn: psycopg.Connection, job_id: int, layer: int, sequence: int, query: int
) -> tuple[Query | None, list[KeyRow], list[Pick]]:
    """What became of a query, its stored qualifying keys, and the picks of all heads, if they are stored."""
    values = {"job": job_id, "layer": layer, "sequence": sequence, "query": query}
    with conn.cursor(row_factory=class_row(Query)) as cursor:
        found = cursor.execute(_QUERY.encode(), values).fetchone()
    with conn.cursor(row_factory=class_row(KeyRow)) as cursor:
        keys = cursor.execute(KEYS_OF_QUERY.encode(), values).fetchall()
    with conn.cursor(row_factory=class_row(Pick)) as cursor:
        picks = cursor.execute(PICKS_OF_QUERY.encode(), values).fetchall()
    return found, keys, picks


def sequence_tokens(conn: psycopg.Connection, job_id: int, sequence: int, last: int) -> list[Token]:
    """The tokens of a sequence up to position ``last``."""
    with conn.cursor(row_factory=class_row(Token)) as cursor:
        values = {"job": job_id, "sequence": sequence, "last": last}
        return cursor.execute(_SEQUENCE_TOKENS.encode(), values).fetchall()


def layers(conn: psycopg.Connection, jobs: list[int]) -> list[int]:
    row = conn.execute(MEASURED.encode(), {"jobs": jobs}).fetchone()
    return (row[0] or []) if row else []
