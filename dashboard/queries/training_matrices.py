"""Spectral norms of the weight matrices of runs and of their updates, by step."""

from collections.abc import Sequence
from typing import Any

import psycopg

from dashboard.queries.training_metrics import Point, points, thinned

QUANTITIES = {  # expression of the view's columns by name
    "weight": "weight_sigma",
    "update": "update_sigma",
    "ratio": "update_sigma / nullif(weight_sigma, 0)",
}
_ROWS = """SELECT run_id, layer, step, {quantity} AS value FROM analysis.training_matrix
    WHERE run_id = ANY(%(runs)s) AND matrix = %(matrix)s AND {layers} AND step >= %(start)s
      AND {quantity} IS NOT NULL"""


def names(conn: psycopg.Connection, runs: Sequence[int]) -> list[str]:
    rows = conn.execute(
        "SELECT DISTINCT matrix FROM analysis.training_matrix WHERE run_id = ANY(%s) ORDER BY 1", (list(runs),)
    ).fetchall()
    return [row[0] for row in rows]


def layers(conn: psycopg.Connection, runs: Sequence[int], matrix: str) -> list[int]:
    """Layers that have this matrix; empty for one outside of layers."""
    rows = conn.execute(
        """SELECT DISTINCT layer FROM analysis.training_matrix
           WHERE run_id = ANY(%s) AND matrix = %s AND layer IS NOT NULL ORDER BY 1""",
        (list(runs), matrix),
    ).fetchall()
    return [row[0] for row in rows]


def curves_sql(
    runs: Sequence[int], matrix: str, quantity: str, *, layer: int | None, series: int, start: int = 0
) -> tuple[str, dict[str, Any]]:
    """Statement and values of one matrix, of one layer or of every one, for a chart of ``series`` lines."""
    values: dict[str, Any] = {"runs": list(runs), "matrix": matrix, "start": start}
    condition = "true"
    if layer is not None:
        condition, values = "layer = %(layer)s", values | {"layer": layer}
    return thinned(_ROWS.format(quantity=QUANTITIES[quantity], layers=condition), values, series)


def curves(conn: psycopg.Connection, statement: str, values: dict[str, Any]) -> list[Point]:
    return points(conn, statement, values)
