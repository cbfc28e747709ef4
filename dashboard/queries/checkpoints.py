"""Stored checkpoints of runs, what they take, and the filters over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from dashboard.queries.paging import Page, page_of, upwards


@dataclass(frozen=True)
class CheckpointLine:
    checkpoint_id: int
    run_id: int
    run: str
    variant: str | None
    seed: int | None
    step: int
    reasons: list[str]
    validation_loss_nats: float | None
    model_type: str
    identity: str
    source: str | None
    resumable: bool
    bytes: int
    created_at: datetime


@dataclass(frozen=True)
class Filters:
    """Empty or None means any; steps and loss are the least and the largest that pass."""

    runs: Sequence[int] = ()
    reason: str | None = None
    least_step: int | None = None
    largest_step: int | None = None
    largest_loss_nats: float | None = None
    resumable: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of the checkpoints that match: how many, and their files' bytes, each counted in full."""

    checkpoints: int
    bytes: int


@dataclass(frozen=True)
class Storage:
    """What all checkpoints take together, equal parts stored once."""

    pieces: int
    bytes: int
    bytes_outside: int
    bytes_unused: int


_LINE = """id AS checkpoint_id, run_id, run, variant, seed, step, reasons, validation_loss_nats, model_type, identity,
       source, resumable, bytes, created_at"""
_MATCHING = """(%(runs)s::int[] IS NULL OR run_id = ANY(%(runs)s))
  AND (%(reason)s::text IS NULL OR %(reason)s = ANY(reasons))
  AND (%(least_step)s::bigint IS NULL OR step >= %(least_step)s)
  AND (%(largest_step)s::bigint IS NULL OR step <= %(largest_step)s)
  AND (%(largest_loss)s::float8 IS NULL OR validation_loss_nats <= %(largest_loss)s)
  AND (NOT %(resumable)s::bool OR resumable)"""

_PAGE = """
SELECT {line} FROM analysis.checkpoint
WHERE {matching}
  AND (%(before)s::int IS NULL OR id < %(before)s)
  AND (%(before)s::int IS NOT NULL OR %(after)s::int IS NULL OR id > %(after)s)
ORDER BY id {direction}
LIMIT %(limit)s"""

_SIZES = """
SELECT count(*) AS checkpoints, coalesce(sum(bytes), 0)::bigint AS bytes FROM analysis.checkpoint
WHERE {matching}"""

ONE = f"SELECT {_LINE} FROM analysis.checkpoint WHERE id = %(checkpoint)s"  # noqa: S608  # our own columns
OF_RUN = f"SELECT {_LINE} FROM analysis.checkpoint WHERE run_id = %(run)s ORDER BY step"  # noqa: S608  # our own columns


def _values(filters: Filters) -> dict[str, Any]:
    return {
        "runs": list(filters.runs) or None,
        "reason": filters.reason,
        "least_step": filters.least_step,
        "largest_step": filters.largest_step,
        "largest_loss": filters.largest_loss_nats,
        "resumable": filters.resumable,
    }


def checkpoint_page(
    conn: psycopg.Connection, filters: Filters, *, before: int | None = None, after: int | None = None, limit: int = 25
) -> Page[CheckpointLine]:
    """Checkpoints with numbers below ``before``, or else those next above ``after``, or else the newest."""
    query = _PAGE.format(line=_LINE, matching=_MATCHING, direction="ASC" if upwards(before, after) else "DESC")
    values = _values(filters) | {"before": before, "after": after, "limit": limit + 1}
    with conn.cursor(row_factory=class_row(CheckpointLine)) as cursor:
        lines = cursor.execute(query.encode(), values).fetchall()
    return page_of(lines, limit, before=before, after=after)


def sizes(conn: psycopg.Connection, filters: Filters) -> Sizes:
    with conn.cursor(row_factory=class_row(Sizes)) as cursor:
        found = cursor.execute(_SIZES.format(matching=_MATCHING).encode(), _values(filters)).fetchone()
    assert found is not None
    return found


def storage(conn: psycopg.Connection) -> Storage:
    with conn.cursor(row_factory=class_row(Storage)) as cursor:
        found = cursor.execute(
            "SELECT pieces, bytes, bytes_outside, bytes_unused FROM analysis.checkpoint_storage"
        ).fetchone()
    assert found is not None
    return found


def checkpoint(conn: psycopg.Connection, number: int) -> CheckpointLine | None:
    with conn.cursor(row_factory=class_row(CheckpointLine)) as cursor:
        return cursor.execute(ONE.encode(), {"checkpoint": number}).fetchone()


def of_run(conn: psycopg.Connection, run: int) -> list[CheckpointLine]:
    """All checkpoints of a run, by step."""
    with conn.cursor(row_factory=class_row(CheckpointLine)) as cursor:
        return cursor.execute(OF_RUN.encode(), {"run": run}).fetchall()
