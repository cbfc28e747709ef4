"""Jobs: insert, find again, list, and the requests a user can make of one (cancel, retry, delete)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import Connection, sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from db import partitions
from db.repositories import checkpoints, events, job_models, runs
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.states import TERMINAL_STATES, JobState


@dataclass(frozen=True)
class NewJob:
    kind: str
    version: int
    queue: str
    priority: int
    label: str | None
    model_source: str
    model_identity: str
    dataset_source: str
    dataset_identity: str
    parameters: dict[str, Any]
    reuse_key: str
    time_limit_s: int
    max_attempts: int
    submitted_by: int | None
    shards: Sequence[tuple[int, int]]  # (first sequence, number of sequences) of each
    other_models: Sequence[tuple[str, str]] = ()  # (source, identity) of those besides the first
    pass_key: str | None = None
    pass_credit: str | None = None
    run: runs.NewRun | None = None  # of training jobs


@dataclass(frozen=True)
class JobRow:
    id: int
    kind: str
    version: int
    queue: str
    state: str
    phase: str
    priority: int
    label: str | None
    model_source: str
    model_identity: str
    model_id: int | None
    dataset_source: str
    dataset_identity: str
    dataset_id: int | None
    parameters: dict[str, Any]
    reuse_key: str
    time_limit_s: int
    max_attempts: int
    crashes: int
    shards: int
    shards_done: int
    rows: int
    measured_s: float
    environment: dict[str, Any] | None
    checks: dict[str, Any] | None
    error_code: str | None
    error_message: str | None
    error_hint: str | None
    error_traceback: str | None
    submitted_by: int | None
    created_at: datetime
    changed_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    hinted_at: datetime | None
    pass_key: str | None
    pass_credit: str | None
    # joined
    live_attempts: int
    run_id: int | None  # of training jobs
    submitted_by_name: str | None
    dataset_fingerprint: str | None
    model_architecture: dict[str, Any] | None
    now: datetime  # the database's clock, for durations of unfinished jobs


_SELECT = """
SELECT job.*, api_token.name AS submitted_by_name, dataset.fingerprint AS dataset_fingerprint,
       model.architecture AS model_architecture, run.id AS run_id, clock_timestamp() AS now,
       (SELECT count(*) FROM keyhole.attempt WHERE attempt.job_id = job.id AND ended_at IS NULL) AS live_attempts
FROM keyhole.job
LEFT JOIN keyhole.api_token ON api_token.id = job.submitted_by
LEFT JOIN keyhole.dataset ON dataset.id = job.dataset_id
LEFT JOIN keyhole.model ON model.id = job.model_id
LEFT JOIN keyhole.run ON run.job_id = job.id
"""


@dataclass(frozen=True)
class JobFilter:
    """Conditions of a listing; None and empty mean any."""

    kinds: Sequence[str] = field(default=())
    states: Sequence[str] = field(default=())
    model: str | None = None  # substring of the source
    dataset: str | None = None  # substring of the source
    label: str | None = None  # substring
    text: str | None = None  # substring of label, model or dataset
    submitted_by: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


def insert(conn: Connection, job: NewJob) -> int:
    """Insert a job and its shards and return the id; call inside a transaction.

    Raises KeyholeError (model_not_found) if a checkpoint that it is to read has been removed.
    """
    checkpoints.hold(conn, [job.model_source, *(source for source, _ in job.other_models)])
    row = conn.execute(
        """
        INSERT INTO keyhole.job (kind, version, queue, priority, label, model_source, model_identity, dataset_source,
            dataset_identity, parameters, reuse_key, time_limit_s, max_attempts, submitted_by, shards, pass_key,
            pass_credit)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING id
        """,
        (
            job.kind,
            job.version,
            job.queue,
            job.priority,
            job.label,
            job.model_source,
            job.model_identity,
            job.dataset_source,
            job.dataset_identity,
            Jsonb(job.parameters),
            job.reuse_key,
            job.time_limit_s,
            job.max_attempts,
            job.submitted_by,
            len(job.shards),
            job.pass_key,
            job.pass_credit,
        ),
    ).fetchone()
    assert row is not None
    job_id: int = row[0]
    conn.execute(
        """
        INSERT INTO keyhole.shard (job_id, index, first_sequence, sequences)
        SELECT %s, ordinality - 1, first_sequence, sequences
        FROM unnest(%s::integer[], %s::integer[]) WITH ORDINALITY AS given (first_sequence, sequences, ordinality)
        """,
        (job_id, [first for first, _ in job.shards], [count for _, count in job.shards]),
    )
    job_models.insert(conn, job_id, job.other_models)
    if job.run is not None:
        runs.insert(conn, job.run, job_id, job.submitted_by)
    events.append(conn, job_id, "queued", {"shards": len(job.shards)})
    return job_id


def lock_reuse_key(conn: Connection, reuse_key: str) -> None:
    """Let one submission of this key decide at a time; released at the end of the transaction."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (reuse_key,))


def reusable(conn: Connection, reuse_key: str) -> int | None:
    """The newest job of this key that succeeded, else one that is queued or running, else None."""
    row = conn.execute(
        """
        SELECT id FROM keyhole.job WHERE reuse_key = %s AND state IN ('succeeded', 'queued', 'running')
        ORDER BY state = 'succeeded' DESC, id DESC LIMIT 1
        """,
        (reuse_key,),
    ).fetchone()
    return row[0] if row else None


def get(conn: Connection, job_id: int) -> JobRow | None:
    with conn.cursor(row_factory=class_row(JobRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE job.id = %s", (job_id,)).fetchone()


def listed(conn: Connection, job_ids: Sequence[int]) -> list[JobRow]:
    """The jobs of these numbers that there are."""
    with conn.cursor(row_factory=class_row(JobRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE job.id = ANY(%s)", (list(job_ids),)).fetchall()


def page(conn: Connection, condition: JobFilter, *, before_id: int | None, limit: int) -> list[JobRow]:
    """Jobs newest first, below ``before_id``: keyset pagination, whose cost does not grow with the page's depth."""
    clauses: list[sql.Composable] = []
    values: dict[str, Any] = {"limit": limit}

    def where(clause: str, **value: Any) -> None:
        clauses.append(sql.SQL(clause))  # type: ignore[arg-type]  # the clauses below are literals
        values.update(value)

    if before_id is not None:
        where("job.id < %(before_id)s", before_id=before_id)
    if condition.kinds:
        where("job.kind = ANY(%(kinds)s)", kinds=list(condition.kinds))
    if condition.states:
        where("job.state = ANY(%(states)s)", states=list(condition.states))
    if condition.model:
        where("strpos(lower(job.model_source), lower(%(model)s)) > 0", model=condition.model)
    if condition.dataset:
        where("strpos(lower(job.dataset_source), lower(%(dataset)s)) > 0", dataset=condition.dataset)
    if condition.label:
        where("strpos(lower(job.label), lower(%(label)s)) > 0", label=condition.label)
    if condition.text:
        where(
            "strpos(lower(concat_ws(' ', job.label, job.model_source, job.dataset_source)), lower(%(text)s)) > 0",
            text=condition.text,
        )
    if condition.submitted_by:
        where("api_token.name = %(submitted_by)s", submitted_by=condition.submitted_by)
    if condition.created_after:
        where("job.created_at >= %(created_after)s", created_after=condition.created_after)
    if condition.created_before:
        where("job.created_at < %(created_before)s", created_before=condition.created_before)
    query = sql.SQL(_SELECT)
    if clauses:
        query += sql.SQL("WHERE ") + sql.SQL(" AND ").join(clauses)
    query += sql.SQL(" ORDER BY job.id DESC LIMIT %(limit)s")
    with conn.cursor(row_factory=class_row(JobRow)) as cursor:
        return cursor.execute(query, values).fetchall()


def queue_positions(conn: Connection) -> dict[int, int]:
    """Place of every queued job in its queue; 1 is next."""
    rows = conn.execute(
        """
        SELECT id, row_number() OVER (PARTITION BY queue ORDER BY priority DESC, id)
        FROM keyhole.job WHERE state = 'queued'
        """
    )
    return dict(rows.fetchall())


def request_cancel(conn: Connection, job_id: int) -> JobState:
    """Cancel a queued job at once, ask a running one to stop; returns the new state. Terminal jobs raise (conflict)."""
    state = _locked_state(conn, job_id)
    if state.terminal:
        raise KeyholeError(ErrorCode.CONFLICT, f"Job {job_id} is already {state}.", "Nothing is left to cancel.")
    if state is JobState.CANCELLING:
        return state
    live = conn.execute(
        "SELECT count(*) FROM keyhole.attempt WHERE job_id = %s AND ended_at IS NULL", (job_id,)
    ).fetchone()
    assert live is not None
    new = JobState.CANCELLING if live[0] else JobState.CANCELLED
    set_state(conn, job_id, new)
    return new


def retry(conn: Connection, job_id: int) -> None:
    """Queue a failed or cancelled job again; finished shards keep their rows and are not computed again."""
    state = _locked_state(conn, job_id)
    if state not in (JobState.FAILED, JobState.CANCELLED):
        hint = "Submit it with force to compute it again." if state is JobState.SUCCEEDED else "Wait for it."
        raise KeyholeError(ErrorCode.CONFLICT, f"Job {job_id} is {state}; only failed or cancelled jobs retry.", hint)
    conn.execute(
        """
        UPDATE keyhole.job SET crashes = 0, started_at = NULL, finished_at = NULL, error_code = NULL,
            error_message = NULL, error_hint = NULL, error_traceback = NULL
        WHERE id = %s
        """,
        (job_id,),
    )
    set_state(conn, job_id, JobState.QUEUED)


def delete(conn: Connection, job_id: int) -> None:
    """Delete a terminal job with all of its rows, run and checkpoints; the storage of its per-query tables is dropped.

    Raises KeyholeError (not_found; conflict while it, or a job that is to read one of its checkpoints, has not ended).
    """
    state = _locked_state(conn, job_id)
    if not state.terminal:
        raise KeyholeError(ErrorCode.CONFLICT, f"Job {job_id} is {state}.", f"Cancel it first: keyhole cancel {job_id}")
    checkpoints.lock_unread(conn, job_id)
    kind = conn.execute("SELECT kind FROM keyhole.job WHERE id = %s", (job_id,)).fetchone()
    assert kind is not None
    for table in KINDS[kind[0]].tables:
        partitions.drop(conn, table.name, job_id)
    conn.execute("DELETE FROM keyhole.job WHERE id = %s", (job_id,))


def set_state(conn: Connection, job_id: int, state: JobState, detail: dict[str, Any] | None = None) -> None:
    """Write a new state, its times, and the event that tells of it. The caller has locked the row."""
    conn.execute(
        """
        UPDATE keyhole.job SET state = %(state)s, phase = CASE WHEN %(state)s = 'succeeded' THEN 'done'
                WHEN %(state)s = 'queued' THEN 'queued' ELSE phase END,
            changed_at = clock_timestamp(),
            started_at = CASE WHEN %(state)s = 'running' THEN coalesce(started_at, clock_timestamp())
                ELSE started_at END,
            finished_at = CASE WHEN %(terminal)s THEN clock_timestamp() END,
            hinted_at = CASE WHEN %(state)s = 'queued' THEN NULL ELSE hinted_at END
        WHERE id = %(id)s
        """,
        {"id": job_id, "state": state, "terminal": state in TERMINAL_STATES},
    )
    events.append(conn, job_id, str(state), detail or {})


def set_failed(conn: Connection, job_id: int, code: ErrorCode, message: str, hint: str, traceback: str | None) -> None:
    """Fail a locked job, keep the error with it, and end the attempts that others still make at it."""
    conn.execute(
        "UPDATE keyhole.attempt SET ended_at = clock_timestamp(), outcome = 'cancelled', detail = 'the job failed' "
        "WHERE job_id = %s AND ended_at IS NULL",
        (job_id,),
    )
    conn.execute(
        "UPDATE keyhole.shard SET state = 'queued', claim_token = NULL, attempt_id = NULL, started_at = NULL "
        "WHERE job_id = %s AND state = 'running'",
        (job_id,),
    )
    conn.execute(
        "UPDATE keyhole.job SET error_code = %s, error_message = %s, error_hint = %s, error_traceback = %s "
        "WHERE id = %s",
        (code, message, hint, traceback, job_id),
    )
    set_state(conn, job_id, JobState.FAILED, {"code": code, "message": message})


def set_phase(conn: Connection, job_id: int, phase: str) -> None:
    """Tell what a running job is doing; a no-op when it is known already."""
    changed = conn.execute(
        "UPDATE keyhole.job SET phase = %s, changed_at = clock_timestamp() "
        "WHERE id = %s AND phase <> %s AND state = 'running'",
        (phase, job_id, phase),
    )
    if changed.rowcount:
        events.append(conn, job_id, "phase", {"phase": phase})


def describe(
    conn: Connection,
    job_id: int,
    *,
    model_id: int | None = None,
    dataset_id: int | None = None,
    environment: dict[str, Any] | None = None,
    checks: dict[str, Any] | None = None,
) -> None:
    """Store what an attempt found out about its model, data and surroundings; given values replace older ones."""
    conn.execute(
        """
        UPDATE keyhole.job SET model_id = coalesce(%s, model_id), dataset_id = coalesce(%s, dataset_id),
            environment = coalesce(%s, environment), checks = coalesce(%s, checks), changed_at = clock_timestamp()
        WHERE id = %s
        """,
        (
            model_id,
            dataset_id,
            Jsonb(environment) if environment is not None else None,
            Jsonb(checks) if checks is not None else None,
            job_id,
        ),
    )


def waiting(conn: Connection, hint_s: float) -> list[tuple[int, str]]:
    """(id, queue) of jobs with open work that no worker was told of for ``hint_s`` seconds; marks them as told.

    A job that is locked just now is left for the next time: its holder may be a stopped process, whose end is what the
    caller has to see to.
    """
    return conn.execute(
        """
        UPDATE keyhole.job SET hinted_at = clock_timestamp()
        WHERE id IN (
            SELECT id FROM keyhole.job WHERE id IN (SELECT id FROM keyhole.open_work)
              AND coalesce(hinted_at, created_at) < clock_timestamp() - make_interval(secs => %s)
            FOR UPDATE SKIP LOCKED)
        RETURNING id, queue
        """,
        (hint_s,),
    ).fetchall()


def lock(conn: Connection, job_id: int) -> JobState | None:
    """Lock the job's row until the end of the transaction and return its state; always before its shards."""
    row = conn.execute("SELECT state FROM keyhole.job WHERE id = %s FOR UPDATE", (job_id,)).fetchone()
    return JobState(row[0]) if row else None


def _locked_state(conn: Connection, job_id: int) -> JobState:
    state = lock(conn, job_id)
    if state is None:
        raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no job {job_id}.", "List jobs with: keyhole jobs")
    return state
