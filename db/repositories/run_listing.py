"""Runs as they are listed and looked at; everything comes from the views that analysts see."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from psycopg import Connection, sql
from psycopg.rows import class_row

from services.contracts.runs import RunCheckpoint, RunView

_COLUMNS = sql.SQL(", ").join(map(sql.Identifier, RunView.model_fields))
METRIC_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("metric", pa.string()),
        ("layer", pa.int16()),
        ("head", pa.int16()),
        ("value", pa.float64()),
    ]
)
MATRIX_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("layer", pa.int16()),
        ("matrix", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("weight_sigma", pa.float64()),
        ("update_sigma", pa.float64()),
    ]
)


@dataclass(frozen=True)
class RunFilter:
    """Conditions of a listing; None and empty mean any."""

    text: str | None = None  # substring of name, model or dataset
    variants: Sequence[str] = field(default=())
    states: Sequence[str] = field(default=())
    seed: int | None = None
    suite: int | None = None
    sweep: int | None = None


def page(conn: Connection, condition: RunFilter, *, before_id: int | None, limit: int) -> list[RunView]:
    """Runs newest first, below ``before_id``."""
    clauses: list[sql.Composable] = [sql.SQL("true")]
    values: dict[str, Any] = {"limit": limit}

    def where(clause: str, **value: Any) -> None:
        clauses.append(sql.SQL(clause))  # type: ignore[arg-type]  # the clauses below are literals
        values.update(value)

    if before_id is not None:
        where("id < %(before_id)s", before_id=before_id)
    if condition.text:
        where("strpos(lower(concat_ws(' ', name, model, dataset)), lower(%(text)s)) > 0", text=condition.text)
    if condition.variants:
        where("variant = ANY(%(variants)s)", variants=list(condition.variants))
    if condition.states:
        where("state = ANY(%(states)s)", states=list(condition.states))
    if condition.seed is not None:
        where("seed = %(seed)s", seed=condition.seed)
    if condition.suite is not None:
        where("job_id IN (SELECT job_id FROM keyhole.suite_job WHERE suite_id = %(suite)s)", suite=condition.suite)
    if condition.sweep is not None:
        where("job_id IN (SELECT job_id FROM keyhole.sweep_member WHERE sweep_id = %(sweep)s)", sweep=condition.sweep)
    query = sql.SQL("SELECT {} FROM analysis.run WHERE {} ORDER BY id DESC LIMIT %(limit)s").format(
        _COLUMNS, sql.SQL(" AND ").join(clauses)
    )
    with conn.cursor(row_factory=class_row(RunView)) as cursor:
        return cursor.execute(query, values).fetchall()


def get(conn: Connection, run_id: int) -> tuple[RunView, dict[str, Any] | None] | None:
    """A run and its parameters."""
    query = sql.SQL("SELECT {} FROM analysis.run WHERE id = %s").format(_COLUMNS)
    with conn.cursor(row_factory=class_row(RunView)) as cursor:
        view = cursor.execute(query, (run_id,)).fetchone()
    if view is None:
        return None
    row = conn.execute("SELECT parameters FROM analysis.run WHERE id = %s", (run_id,)).fetchone()
    return view, row[0] if row else None


def exists(conn: Connection, run_id: int) -> bool:
    return conn.execute("SELECT FROM keyhole.run WHERE id = %s", (run_id,)).fetchone() is not None


def metric_names(conn: Connection, run_id: int) -> list[str]:
    rows = conn.execute(
        "SELECT DISTINCT metric FROM keyhole.training_metric WHERE run_id = %s ORDER BY metric", (run_id,)
    )
    return [name for (name,) in rows.fetchall()]


def checkpoints(conn: Connection, run_id: int) -> list[RunCheckpoint]:
    with conn.cursor(row_factory=class_row(RunCheckpoint)) as cursor:
        return cursor.execute(
            "SELECT id, step, reasons, validation_loss_nats, resumable, bytes, created_at FROM analysis.checkpoint "
            "WHERE run_id = %s ORDER BY step",
            (run_id,),
        ).fetchall()


def metrics(conn: Connection, run_id: int, names: Sequence[str] | None, after_step: int | None) -> pa.RecordBatch:
    """The run's numbers by metric, layer, head and step: all, or those of these names, or of later steps."""
    rows = conn.execute(
        """
        SELECT step, metric, layer, head, value FROM keyhole.training_metric
        WHERE run_id = %(run)s AND (%(names)s::text[] IS NULL OR metric = ANY(%(names)s))
          AND (%(after)s::integer IS NULL OR step > %(after)s)
        ORDER BY metric, layer NULLS FIRST, head NULLS FIRST, step
        """,
        {"run": run_id, "names": list(names) if names else None, "after": after_step},
    ).fetchall()
    return _batch(rows, METRIC_SCHEMA)


def matrices(conn: Connection, run_id: int) -> pa.RecordBatch:
    """Spectral norms of the run's matrices by layer, matrix and step."""
    rows = conn.execute(
        """
        SELECT step, layer, matrix, height, width, weight_sigma, update_sigma FROM keyhole.training_matrix
        WHERE run_id = %s ORDER BY layer NULLS FIRST, matrix, step
        """,
        (run_id,),
    ).fetchall()
    return _batch(rows, MATRIX_SCHEMA)


def _batch(rows: Sequence[tuple], schema: pa.Schema) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )
