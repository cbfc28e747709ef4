"""Attempts: one worker on one job, with a token and a lease on the database's clock.

An attempt has a child process, or it rides along in the child of another, its leader: one pass of the model then serves
both jobs (riders.py). Order of locks, everywhere: job, then attempt, then shards.
"""

from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection
from psycopg.rows import class_row

from db.repositories import events, jobs
from services.contracts.errors import ErrorCode
from services.contracts.jobs import AttemptView
from services.contracts.states import AttemptOutcome, JobState


@dataclass(frozen=True)
class OpenAttempt:
    id: int
    token: UUID
    job_id: int
    number: int


@dataclass(frozen=True)
class Pulse:
    """What a renewal learns of an attempt: whether its job still wants it, and how long that has run."""

    token: UUID
    job_id: int
    job_state: JobState
    elapsed_s: float
    time_limit_s: int

    @property
    def overdue(self) -> bool:
        return self.job_state is JobState.RUNNING and self.elapsed_s > self.time_limit_s

    def overdue_message(self) -> str:
        return f"The job ran for {self.elapsed_s:.0f} s; its time limit is {self.time_limit_s} s."

    def overdue_hint(self) -> str:
        return (
            "Submit it with a larger time limit or fewer sequences; finished shards are kept by: "
            f"keyhole retry {self.job_id}"
        )


def next_job(conn: Connection, queue: str) -> int | None:
    """The job of this queue that another attempt would serve best: priority, then fewest attempts, then age."""
    row = conn.execute(
        "SELECT id FROM keyhole.open_work WHERE queue = %s ORDER BY priority DESC, attempts, id LIMIT 1", (queue,)
    ).fetchone()
    return row[0] if row else None


def queue_of(conn: Connection, token: UUID) -> str | None:
    """The queue of the job that an attempt is on."""
    row = conn.execute(
        "SELECT job.queue FROM keyhole.attempt JOIN keyhole.job ON job.id = attempt.job_id WHERE attempt.token = %s",
        (token,),
    ).fetchone()
    return row[0] if row else None


def next_of_model(conn: Connection, queue: str, after: int) -> int | None:
    """The job that a child which has just finished job ``after`` may go on with, its model being loaded; or None.

    That is the queue's next job if it is of the same model, else one of a suite that both are in, if the queue's next
    has no higher priority. Suites end, so that jobs of other models wait no longer than for one of them. From training
    to training only the process goes on, which is little: not while another queue has work, which would wait for all.
    """
    row = conn.execute(
        """
        SELECT open_work.id FROM keyhole.open_work
        JOIN keyhole.job USING (id) JOIN keyhole.job AS finished ON finished.id = %(after)s
        WHERE open_work.queue = %(queue)s AND job.model_identity = finished.model_identity
          AND job.parameters -> 'dtype' IS NOT DISTINCT FROM finished.parameters -> 'dtype'
          AND (job.id = %(next)s OR EXISTS (
              SELECT FROM keyhole.suite_job AS mine JOIN keyhole.suite_job AS its USING (suite_id)
              WHERE mine.job_id = job.id AND its.job_id = finished.id))
          AND open_work.priority >= (SELECT priority FROM keyhole.job WHERE id = %(next)s)
          AND (%(queue)s <> 'training' OR NOT EXISTS (SELECT FROM keyhole.open_work WHERE queue <> 'training'))
        ORDER BY open_work.priority DESC, open_work.attempts, open_work.id LIMIT 1
        """,
        {"queue": queue, "after": after, "next": next_job(conn, queue)},
    ).fetchone()
    return row[0] if row else None


def open_attempt(
    conn: Connection, queue: str, worker: str, device: str, lease_s: float, *, after: int | None = None
) -> OpenAttempt | None:
    """Open an attempt on the queue's next job, or None when no job wants one. Call inside a transaction.

    However many workers ask at once, the row lock lets them decide one after the other. With ``after`` only a job will
    do that goes on with the model of that job, see ``next_of_model``.
    """

    def following() -> int | None:
        return next_job(conn, queue) if after is None else next_of_model(conn, queue, after)

    while (job_id := following()) is not None:
        state = jobs.lock(conn, job_id)
        wanted = conn.execute("SELECT FROM keyhole.open_work WHERE id = %s", (job_id,)).fetchone()
        if wanted is not None:
            return insert(conn, job_id, state, worker, device, lease_s)
    return None


def insert(
    conn: Connection,
    job_id: int,
    state: JobState | None,
    worker: str,
    device: str,
    lease_s: float,
    leader_id: int | None = None,
) -> OpenAttempt:
    """Insert an attempt on a locked job in this state, queued or running, and set it running."""
    with conn.cursor(row_factory=class_row(OpenAttempt)) as cursor:
        attempt = cursor.execute(
            """
            INSERT INTO keyhole.attempt (job_id, number, worker, device, lease_until, leader_id)
            VALUES (%(job)s, 1 + (SELECT count(*) FROM keyhole.attempt WHERE job_id = %(job)s), %(worker)s,
                %(device)s, clock_timestamp() + make_interval(secs => %(lease)s), %(leader)s)
            RETURNING id, token, job_id, number
            """,
            {"job": job_id, "worker": worker, "device": device, "lease": lease_s, "leader": leader_id},
        ).fetchone()
    assert attempt is not None
    if state is JobState.QUEUED:
        jobs.set_state(conn, job_id, JobState.RUNNING, {"worker": worker, "attempt": attempt.number})
    else:
        events.append(conn, job_id, "attempt", {"worker": worker, "attempt": attempt.number})
    return attempt


def renew(conn: Connection, token: UUID, lease_s: float) -> list[Pulse]:
    """Extend the leases of the attempt and of all that ride with it; those that have ended are left out.

    The attempt itself is among them unless someone else ended it, so that its child must die.
    """
    rows = conn.execute(
        """
        UPDATE keyhole.attempt SET heartbeat_at = clock_timestamp(),
            lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
        FROM keyhole.job
        WHERE (attempt.token = %(token)s
               OR attempt.leader_id = (SELECT id FROM keyhole.attempt WHERE token = %(token)s))
          AND attempt.ended_at IS NULL AND job.id = attempt.job_id
        RETURNING attempt.token, job.id, job.state,
            extract(epoch FROM clock_timestamp() - coalesce(job.started_at, job.created_at))::float8, job.time_limit_s
        """,
        {"token": token, "lease": lease_s},
    ).fetchall()
    return [Pulse(of, job_id, JobState(state), *times) for of, job_id, state, *times in rows]


def end(conn: Connection, token: UUID, outcome: AttemptOutcome, detail: str | None = None) -> bool:
    """End a live attempt, give its shards back and settle the job; False if it had ended before.

    Call inside a transaction.
    """
    job_id = _end(conn, token, outcome, detail)
    if job_id is not None:
        settle(conn, job_id)
    return job_id is not None


def fail(
    conn: Connection,
    token: UUID,
    outcome: AttemptOutcome,
    code: ErrorCode,
    message: str,
    hint: str = "",
    traceback: str | None = None,
) -> bool:
    """End a live attempt with an error that fails its job; False if the attempt had ended before.

    Call inside a transaction.
    """
    job_id = _end(conn, token, outcome, message)
    if job_id is None:
        return False
    if jobs.lock(conn, job_id) is JobState.RUNNING:
        jobs.set_failed(conn, job_id, code, message, hint, traceback)
    else:
        settle(conn, job_id)
    return True


def _end(conn: Connection, token: UUID, outcome: AttemptOutcome, detail: str | None) -> int | None:
    """End a live attempt and give its shards back; the id of its job, now locked, or None if it had ended before."""
    row = conn.execute("SELECT id, job_id FROM keyhole.attempt WHERE token = %s", (token,)).fetchone()
    if row is None:
        return None
    attempt_id, job_id = row
    jobs.lock(conn, job_id)
    ended = conn.execute(
        "UPDATE keyhole.attempt SET ended_at = clock_timestamp(), outcome = %s, detail = %s "
        "WHERE id = %s AND ended_at IS NULL RETURNING number, worker",
        (outcome, detail, attempt_id),
    ).fetchone()
    if ended is None:
        return None
    conn.execute(
        "UPDATE keyhole.shard SET state = 'queued', claim_token = NULL, attempt_id = NULL, started_at = NULL "
        "WHERE job_id = %s AND attempt_id = %s AND state = 'running'",
        (job_id, attempt_id),
    )
    if outcome in (AttemptOutcome.CRASHED, AttemptOutcome.LOST):
        conn.execute("UPDATE keyhole.job SET crashes = crashes + 1 WHERE id = %s", (job_id,))
    if outcome is not AttemptOutcome.COMPLETED:
        number, worker = ended
        events.append(
            conn, job_id, "attempt_ended", {"attempt": number, "worker": worker, "outcome": outcome, "detail": detail}
        )
    return job_id


def settle(conn: Connection, job_id: int) -> None:
    """Bring a locked job's state in line with its attempts: cancelled, failed for good, or back in the queue."""
    row = conn.execute(
        """
        SELECT state, crashes, max_attempts,
            (SELECT count(*) FROM keyhole.attempt WHERE job_id = job.id AND ended_at IS NULL),
            (SELECT concat_ws(': ', worker, detail) FROM keyhole.attempt
             WHERE job_id = job.id AND outcome IN ('crashed', 'lost') ORDER BY id DESC LIMIT 1)
        FROM keyhole.job WHERE id = %s
        """,
        (job_id,),
    ).fetchone()
    if row is None:
        return
    state, crashes, max_attempts, live, last_death = row
    if state == JobState.CANCELLING and live == 0:
        jobs.set_state(conn, job_id, JobState.CANCELLED)
    elif state == JobState.RUNNING and crashes >= max_attempts:
        jobs.set_failed(
            conn,
            job_id,
            ErrorCode.ATTEMPTS_EXHAUSTED,
            f"{crashes} attempts in a row died without finishing a shard; the last one on worker {last_death}.",
            f"Read the log with: keyhole logs {job_id}. A child killed by signal 9 often ran out of memory: "
            "lower length or batch. Then: keyhole retry " + str(job_id),
            None,
        )
    elif state == JobState.RUNNING and live == 0:
        jobs.set_state(conn, job_id, JobState.QUEUED, {"reason": "nobody works on it now; it waits for a worker"})


def expired(conn: Connection, database_grace_s: float) -> list[UUID]:
    """Tokens of live attempts whose lease ran out.

    Empty for a while after the database started: while it was down nobody could renew.
    """
    rows = conn.execute(
        """
        SELECT token FROM keyhole.attempt
        WHERE ended_at IS NULL AND lease_until < clock_timestamp()
          AND clock_timestamp() > pg_postmaster_start_time() + make_interval(secs => %s)
        """,
        (database_grace_s,),
    ).fetchall()
    return [row[0] for row in rows]


def connection_name(token: UUID) -> str:
    """The application name of every connection that works for an attempt, by which they can be found and ended."""
    return f"keyhole attempt {token}"


def cut_off(conn: Connection, token: UUID) -> None:
    """End the database sessions of an attempt: a stopped process may hold locks that its successor needs.

    Those of a rider are its leader's, whose lease is the same.
    """
    row = conn.execute(
        "SELECT leader.token FROM keyhole.attempt JOIN keyhole.attempt AS leader ON leader.id = attempt.leader_id "
        "WHERE attempt.token = %s",
        (token,),
    ).fetchone()
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND usename = current_user AND application_name = ANY(%s)",
        ([connection_name(each) for each in (token, *(row or ()))],),
    )


def unsettled_jobs(conn: Connection) -> list[int]:
    """Running or cancelling jobs without a live attempt, should a crash have come before settle()."""
    rows = conn.execute(
        """
        SELECT id FROM keyhole.job WHERE state IN ('running', 'cancelling')
          AND NOT EXISTS (SELECT FROM keyhole.attempt WHERE attempt.job_id = job.id AND attempt.ended_at IS NULL)
        """
    ).fetchall()
    return [row[0] for row in rows]


def of_job(conn: Connection, job_id: int) -> list[AttemptView]:
    with conn.cursor(row_factory=class_row(AttemptView)) as cursor:
        return cursor.execute(
            "SELECT number, worker, device, started_at, heartbeat_at, ended_at, outcome, detail "
            "FROM keyhole.attempt WHERE job_id = %s ORDER BY number",
            (job_id,),
        ).fetchall()
