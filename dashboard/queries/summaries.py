"""Stored distributions of metrics, which lists and charts are drawn from."""

import psycopg
from psycopg.rows import class_row

from dashboard.summaries import Summary

_SUMMARIES = """
SELECT job_id, metric, {layer} AS layer, {head} AS head, n, n_infinite, n_undefined, mean, sd, minimum,
       q01, q05, q25, median, q75, q95, q99, maximum, histogram_low, histogram_width, histogram
FROM analysis.{view}
WHERE job_id = ANY(%(jobs)s) AND metric = ANY(%(metrics)s)"""
_NONE = "NULL::smallint"

JOB_SUMMARIES = _SUMMARIES.format(view="job_summary", layer=_NONE, head=_NONE) + "\nORDER BY job_id, metric"
LAYER_SUMMARIES = (
    _SUMMARIES.format(view="layer_summary", layer="layer", head=_NONE) + "\nORDER BY job_id, metric, layer"
)
ONE_HEAD = (
    _SUMMARIES.format(view="head_summary", layer="layer", head="head")
    + " AND layer = %(layer)s AND head = %(head)s\nORDER BY job_id, metric"
)
EVERY_HEAD = (
    _SUMMARIES.format(view="head_summary", layer="layer", head="head") + "\nORDER BY job_id, metric, layer, head"
)


def summaries(conn: psycopg.Connection, query: str, **values: object) -> list[Summary]:
    """Rows of JOB_SUMMARIES, LAYER_SUMMARIES, EVERY_HEAD or ONE_HEAD."""
    with conn.cursor(row_factory=class_row(Summary)) as cursor:
        return cursor.execute(query.encode(), values).fetchall()


def extent(conn: psycopg.Connection, jobs: list[int]) -> tuple[list[int], list[int]]:
    """All layers and all heads that any of the jobs has."""
    row = conn.execute(
        """SELECT array_agg(DISTINCT layer ORDER BY layer), array_agg(DISTINCT head ORDER BY head)
           FROM analysis.head_summary WHERE job_id = ANY(%s)""",
        (jobs,),
    ).fetchone()
    return (row[0] or [], row[1] or []) if row else ([], [])
