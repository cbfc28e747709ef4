"""Stored distributions of a job's metrics, by head, by layer and for the whole model."""

from typing import Literal

from psycopg import Connection
from psycopg.rows import class_row

from services.contracts.jobs import SummaryRow

Level = Literal["head", "layer", "job"]


def of_job(conn: Connection, job_id: int, metric: str | None = None, level: Level | None = None) -> list[SummaryRow]:
    """Summaries in the order metric, layer, head, the wider level first; all metrics and levels unless told."""
    with conn.cursor(row_factory=class_row(SummaryRow)) as cursor:
        return cursor.execute(
            """
            SELECT layer, head, metric, n, n_infinite, n_undefined, mean, sd, minimum, q01, q05, q25, median, q75, q95,
                q99, maximum, histogram_low, histogram_width, histogram
            FROM keyhole.summary
            WHERE job_id = %(job)s AND (%(metric)s::text IS NULL OR metric = %(metric)s)
              AND (%(level)s::text IS NULL OR %(level)s =
                   CASE WHEN layer IS NULL THEN 'job' WHEN head IS NULL THEN 'layer' ELSE 'head' END)
            ORDER BY metric, layer NULLS FIRST, head NULLS FIRST
            """,
            {"job": job_id, "metric": metric, "level": level},
        ).fetchall()
