"""Exponents of spectral norms against width, over the runs of a suite."""

from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row


@dataclass(frozen=True)
class Exponent:
    """Of one matrix at one step, with the settings that its runs share."""

    variant: str
    optimizer: str
    learning_rate: float
    weight_decay: float
    matrix: str
    step: int
    runs: int
    widths: int
    smallest_width: float
    largest_width: float
    update_exponent: float | None  # None at step 0
    update_exponent_se: float | None  # None of two runs
    weight_exponent: float | None
    weight_exponent_se: float | None


GROWTH = """
SELECT variant, optimizer, learning_rate, weight_decay, matrix, step, runs, widths, smallest_width, largest_width,
       update_exponent, update_exponent_se, weight_exponent, weight_exponent_se
FROM analysis.width_growth WHERE suite_id = %(suite)s
ORDER BY optimizer, learning_rate, weight_decay, variant, matrix, step"""


def growth(conn: psycopg.Connection, suite_id: int) -> list[Exponent]:
    """By settings, matrix and step; empty for a suite whose runs have one width."""
    with conn.cursor(row_factory=class_row(Exponent)) as cursor:
        return cursor.execute(GROWTH, {"suite": suite_id}).fetchall()
