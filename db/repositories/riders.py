"""Attempts that ride along in the child of another attempt, their leader, so that one pass serves several jobs.

The leader's supervisor renews their leases with its own, and ends them when the leader ends. What kills the child
counts against the leader's job alone: a job that has lost an attempt is measured without company until it has
finished a shard.
"""

from uuid import UUID

from psycopg import Connection

from db.repositories import attempts
from db.repositories.attempts import OpenAttempt, Pulse
from services.contracts.errors import ErrorCode
from services.contracts.states import AttemptOutcome, JobState

MOST = 15  # jobs that ride with one leader


def open_riders(conn: Connection, leader: UUID, lease_s: float) -> list[OpenAttempt]:
    """Let waiting jobs that can be measured in the leader's passes ride along; call inside a transaction.

    They must wait (other attempts on them would be at other shards), and share model, tokens, batch, arithmetic and,
    where they need a backward pass, its loss.
    """
    row = conn.execute(
        """
        SELECT attempt.id, worker, device, pass_key, pass_credit FROM keyhole.attempt
        JOIN keyhole.job ON job.id = attempt.job_id
        WHERE token = %s AND ended_at IS NULL AND crashes = 0 AND pass_key IS NOT NULL
        """,
        (leader,),
    ).fetchone()
    if row is None:
        return []
    leader_id, worker, device, key, credit = row
    waiting = conn.execute(
        """
        SELECT id, pass_credit FROM keyhole.job
        WHERE pass_key = %s AND state = 'queued' AND crashes = 0 AND shards_done = 0
        ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
        """,
        (key, MOST),
    ).fetchall()
    opened = []
    for job_id, wanted in waiting:
        if wanted is not None and credit is not None and wanted != credit:
            continue
        credit = credit or wanted
        opened.append(attempts.insert(conn, job_id, JobState.QUEUED, worker, device, lease_s, leader_id))
    return opened


def drop_unwanted(conn: Connection, pulse: Pulse) -> None:
    """End a rider whose job was cancelled or has run too long; what its child still measures will be refused."""
    if pulse.job_state is not JobState.RUNNING:
        attempts.end(conn, pulse.token, AttemptOutcome.CANCELLED, f"the job is {pulse.job_state}")
    elif pulse.overdue:
        attempts.fail(
            conn,
            pulse.token,
            AttemptOutcome.TIMED_OUT,
            ErrorCode.TIME_LIMIT,
            pulse.overdue_message(),
            pulse.overdue_hint(),
        )


def release(conn: Connection, leader: UUID) -> None:
    """End all that still ride with this leader, which has ended: their jobs go back to the queue."""
    tokens = conn.execute(
        """
        SELECT token FROM keyhole.attempt
        WHERE leader_id = (SELECT id FROM keyhole.attempt WHERE token = %s) AND ended_at IS NULL ORDER BY job_id
        """,
        (leader,),
    ).fetchall()
    for (token,) in tokens:
        attempts.end(conn, token, AttemptOutcome.RELEASED, "the attempt it rode with has ended")
