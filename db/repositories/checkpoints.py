"""Checkpoints as rows: found, listed, and which of a run's are kept. Their bytes are db.checkpoint_store's business."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection, sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from db.stored_files import RESUME_FILE, no_checkpoint
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from services.contracts.training.training import Checkpoints


@dataclass(frozen=True)
class CheckpointRow:
    id: int
    run_id: int
    step: int
    reasons: list[str]
    identity: str
    source: str | None
    model_type: str
    config: dict[str, Any]
    validation_loss_nats: float | None
    resumable: bool
    created_at: datetime
    # joined
    run_name: str
    variant: str | None
    job_id: int | None
    bytes: int  # of its files, what they share with others counted in full


@dataclass(frozen=True)
class CheckpointFilter:
    """Conditions of a listing; None means any."""

    run_id: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    reason: str | None = None
    model_type: str | None = None
    variant: str | None = None
    min_loss_nats: float | None = None
    max_loss_nats: float | None = None


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A model whose files stay where they are."""

    step: int
    source: str  # pinned
    identity: str
    model_type: str
    config: dict[str, Any]


_SELECT = """
SELECT checkpoint.*, run.name AS run_name, run.variant, run.job_id,
       (SELECT coalesce(sum(size), 0)::bigint FROM keyhole.checkpoint_file WHERE checkpoint_id = checkpoint.id) AS bytes
FROM keyhole.checkpoint JOIN keyhole.run ON run.id = checkpoint.run_id
"""
_SOURCE = "checkpoint:"  # with the number of one
_ORDER = {"first": "step", "last": "step DESC", "best": "validation_loss_nats, step"}


def get(conn: Connection, checkpoint_id: int) -> CheckpointRow | None:
    return _one(conn, "WHERE checkpoint.id = %s", checkpoint_id)


def listed(
    conn: Connection, condition: CheckpointFilter, *, before_id: int | None = None, limit: int = 50
) -> list[CheckpointRow]:
    """Checkpoints newest first, below ``before_id``: keyset pagination."""
    clauses = {
        "checkpoint.id < %(before_id)s": before_id,
        "checkpoint.run_id = %(run_id)s": condition.run_id,
        "checkpoint.step >= %(first_step)s": condition.first_step,
        "checkpoint.step <= %(last_step)s": condition.last_step,
        "%(reason)s = ANY(checkpoint.reasons)": condition.reason,
        "checkpoint.model_type = %(model_type)s": condition.model_type,
        "run.variant = %(variant)s": condition.variant,
        "checkpoint.validation_loss_nats >= %(min_loss_nats)s": condition.min_loss_nats,
        "checkpoint.validation_loss_nats <= %(max_loss_nats)s": condition.max_loss_nats,
    }
    chosen = [sql.SQL(clause) for clause, value in clauses.items() if value is not None]  # type: ignore[arg-type]  # literals
    query = sql.SQL(_SELECT) + (sql.SQL("WHERE ") + sql.SQL(" AND ").join(chosen) if chosen else sql.SQL(""))
    query += sql.SQL(" ORDER BY checkpoint.id DESC LIMIT %(limit)s")
    with conn.cursor(row_factory=class_row(CheckpointRow)) as cursor:
        return cursor.execute(query, vars(condition) | {"before_id": before_id, "limit": limit}).fetchall()


def of_run(conn: Connection, run_id: int) -> list[CheckpointRow]:
    """The run's checkpoints in the order of their steps."""
    with conn.cursor(row_factory=class_row(CheckpointRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE run_id = %s ORDER BY step", (run_id,)).fetchall()


def at(conn: Connection, run_id: int, place: str) -> CheckpointRow | None:
    """The run's checkpoint at a step, or its ``first``, ``last`` or ``best``: the lowest validation loss."""
    if place.isdecimal():
        return _one(conn, "WHERE run_id = %s AND step = %s", run_id, int(place))
    measured = "AND validation_loss_nats IS NOT NULL" if place == "best" else ""
    return _one(conn, f"WHERE run_id = %s {measured} ORDER BY {_ORDER[place]} LIMIT 1", run_id)


def newest_resumable(conn: Connection, run_id: int) -> CheckpointRow | None:
    """The checkpoint from which a run that was lost goes on."""
    return _one(conn, "WHERE run_id = %s AND resumable ORDER BY step DESC LIMIT 1", run_id)


def insert_imported(conn: Connection, run_id: int, imported: Sequence[ImportedCheckpoint]) -> None:
    with conn.cursor() as cursor:
        cursor.executemany(
            """
            INSERT INTO keyhole.checkpoint (run_id, step, reasons, identity, source, model_type, config)
            VALUES (%s, %s, '{imported}', %s, %s, %s, %s)
            """,
            [(run_id, each.step, each.identity, each.source, each.model_type, Jsonb(each.config)) for each in imported],
        )


def hold(conn: Connection, sources: Sequence[str]) -> None:
    """Keep the checkpoints among the sources while this transaction lasts: it inserts a job that is to read them.

    Raises KeyholeError (model_not_found) for one that is not there any more.
    """
    numbers = sorted({int(source.removeprefix(_SOURCE)) for source in sources if source.startswith(_SOURCE)})
    if not numbers:
        return
    rows = conn.execute(
        "SELECT id FROM keyhole.checkpoint WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE", (numbers,)
    ).fetchall()
    if gone := sorted(set(numbers) - {row[0] for row in rows}):
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND,
            f"There is no {_SOURCE}{gone[0]} any more.",
            "It was removed while the job was submitted. List those of the run: keyhole checkpoints",
        )


def go_back(conn: Connection, run_id: int, step: int) -> None:
    """Take the reasons of the checkpoints of later steps: a lost attempt made them, and the run computes them again.

    An equal one that is committed gets its reasons back and keeps its number; the others go as the run passes them.
    """
    conn.execute("UPDATE keyhole.checkpoint SET reasons = '{}' WHERE run_id = %s AND step > %s", (run_id, step))


def tidy(conn: Connection, run_id: int, policy: Checkpoints, step: int) -> None:
    """Take away the reasons that no longer hold, and the checkpoints and files that are then kept for none.

    Best is the lowest validation loss so far (the earliest such step), last the highest step, resume the newest from
    which the run can go on. Those beyond ``step``, where the run is, stay as they are; so does one that a job which has
    not ended is to read, until a later ``tidy`` or ``remove_unwanted``.
    """
    conn.execute("SELECT FROM keyhole.run WHERE id = %s FOR NO KEY UPDATE", (run_id,))
    newest = {
        "best": "validation_loss_nats, step",
        "last": "step DESC",
        "resume": "resumable DESC, step DESC",
    }
    for reason, order in newest.items():
        _take_away(conn, run_id, reason, order, 1)
    if policy.keep is not None:
        _take_away(conn, run_id, "interval", "step DESC", policy.keep)
    if not policy.keep_optimizer:
        conn.execute(
            """
            WITH older AS (
                UPDATE keyhole.checkpoint SET resumable = false
                WHERE run_id = %(run)s AND resumable
                  AND step < (SELECT max(step) FROM keyhole.checkpoint WHERE run_id = %(run)s AND resumable)
                RETURNING id)
            DELETE FROM keyhole.checkpoint_file USING older
            WHERE checkpoint_file.checkpoint_id = older.id AND name = %(name)s
            """,
            {"run": run_id, "name": RESUME_FILE},
        )
    _remove_unwanted(conn, "run.id = %s AND checkpoint.step <= %s", run_id, step)


def remove_unwanted(conn: Connection) -> int:
    """Delete the checkpoints of runs that have ended which are kept for no reason and which no open job is to read."""
    return _remove_unwanted(
        conn,
        "NOT EXISTS (SELECT FROM keyhole.job WHERE id = run.job_id AND state IN ('queued', 'running', 'cancelling'))",
    )


def delete(conn: Connection, checkpoint_id: int) -> None:
    """Delete a checkpoint; raises KeyholeError (not_found; conflict while a job that has not ended needs it)."""
    found = conn.execute(
        """
        SELECT checkpoint.run_id, checkpoint.step, checkpoint.resumable, job.id, job.state
        FROM keyhole.checkpoint JOIN keyhole.run ON run.id = checkpoint.run_id
        LEFT JOIN keyhole.job ON job.id = run.job_id
        WHERE checkpoint.id = %s FOR UPDATE OF checkpoint
        """,
        (checkpoint_id,),
    ).fetchone()
    if found is None:
        raise no_checkpoint(checkpoint_id)
    run_id, step, resumable, job_id, state = found
    _require_unread(conn, [checkpoint_id])
    newest = newest_resumable(conn, run_id)
    if resumable and job_id is not None and not JobState(state).terminal and newest and newest.step == step:
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"Run {run_id} would go on from checkpoint {checkpoint_id}: its job {job_id} is {state}.",
            f"Wait for it, or cancel it: keyhole cancel {job_id}",
        )
    conn.execute("DELETE FROM keyhole.checkpoint WHERE id = %s", (checkpoint_id,))


def lock_unread(conn: Connection, job_id: int) -> None:
    """Lock a training job's checkpoints; raises KeyholeError (conflict) while an open job is to read one of them."""
    rows = conn.execute(
        "SELECT checkpoint.id FROM keyhole.checkpoint JOIN keyhole.run ON run.id = run_id WHERE job_id = %s "
        "ORDER BY checkpoint.id FOR UPDATE OF checkpoint",
        (job_id,),
    ).fetchall()
    _require_unread(conn, [row[0] for row in rows])


def _require_unread(conn: Connection, checkpoint_ids: Sequence[int]) -> None:
    reader = conn.execute(
        f"SELECT reader.id, checkpoint.id FROM keyhole.checkpoint, LATERAL ({_READERS}) AS reader "  # noqa: S608  # a condition of this file
        "WHERE checkpoint.id = ANY(%s) ORDER BY reader.id LIMIT 1",
        (list(checkpoint_ids),),
    ).fetchone()
    if reader is not None:
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"Job {reader[0]} is to read checkpoint {reader[1]}.",
            f"Wait for it, or cancel it: keyhole cancel {reader[0]}",
        )


# jobs that have not ended and are to read the checkpoint of the row
_READERS = """
SELECT job.id FROM keyhole.job WHERE job.state IN ('queued', 'running', 'cancelling')
  AND (job.model_source = 'checkpoint:' || checkpoint.id
       OR EXISTS (SELECT FROM keyhole.job_model
                  WHERE job_id = job.id AND job_model.source = 'checkpoint:' || checkpoint.id))
"""


def _remove_unwanted(conn: Connection, condition: str, *values: Any) -> int:
    # locked by a statement of its own, so that the next one sees the jobs that held them meanwhile; those that a job
    # holds now stay
    locked = f"""
        SELECT checkpoint.id FROM keyhole.checkpoint JOIN keyhole.run ON run.id = checkpoint.run_id
        WHERE reasons = '{{}}' AND {condition} ORDER BY checkpoint.id FOR UPDATE OF checkpoint SKIP LOCKED
        """  # noqa: S608  # conditions of this file
    with conn.transaction():  # the locks are held until the second statement is done
        rows = conn.execute(locked.encode(), values).fetchall()
        removed = conn.execute(
            f"DELETE FROM keyhole.checkpoint WHERE id = ANY(%s) AND NOT EXISTS ({_READERS})",  # noqa: S608  # a condition of this file
            ([row[0] for row in rows],),
        )
    return removed.rowcount


def _take_away(conn: Connection, run_id: int, reason: str, order: str, keep: int) -> None:
    """Take the reason from all but the first ``keep`` that have it, in this order."""
    statement = f"""
        UPDATE keyhole.checkpoint SET reasons = array_remove(reasons, %(reason)s)
        WHERE id IN (SELECT id FROM keyhole.checkpoint WHERE run_id = %(run)s AND %(reason)s = ANY(reasons)
                     ORDER BY {order} OFFSET %(keep)s)
        """  # noqa: S608  # the orders are those above
    conn.execute(statement.encode(), {"run": run_id, "reason": reason, "keep": keep})


def _one(conn: Connection, where: str, *values: Any) -> CheckpointRow | None:
    with conn.cursor(row_factory=class_row(CheckpointRow)) as cursor:
        return cursor.execute((_SELECT + where).encode(), values).fetchone()
