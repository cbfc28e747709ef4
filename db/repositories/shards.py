"""Shards: claimed one at a time by an attempt, and done under the token of that claim.

A claim's token fences its result: when the attempt was ended meanwhile the token is gone from the row, the late
finish changes nothing, and its transaction, rows and all, is rolled back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from db.repositories import events, jobs
from services.contracts.jobs import ShardView
from services.contracts.states import JobState


@dataclass(frozen=True)
class ClaimedShard:
    job_id: int
    index: int
    first_sequence: int
    sequences: int
    claim_token: UUID


def claim(conn: Connection, attempt_token: UUID, index: int | None = None) -> ClaimedShard | None:
    """Claim the attempt's next open shard, or that of this index; None when it is not open or the attempt was ended.

    Call inside a transaction. The shared lock on the attempt keeps it from being ended in between.
    """
    attempt = conn.execute(
        """
        SELECT attempt.id, attempt.job_id FROM keyhole.attempt JOIN keyhole.job ON job.id = attempt.job_id
        WHERE attempt.token = %s AND attempt.ended_at IS NULL AND job.state = 'running'
        FOR SHARE OF attempt
        """,
        (attempt_token,),
    ).fetchone()
    if attempt is None:
        return None
    attempt_id, job_id = attempt
    with conn.cursor(row_factory=class_row(ClaimedShard)) as cursor:
        return cursor.execute(
            """
            UPDATE keyhole.shard
            SET state = 'running', attempt_id = %s, claim_token = gen_random_uuid(), started_at = clock_timestamp()
            WHERE (job_id, index) = (
                SELECT job_id, index FROM keyhole.shard
                WHERE job_id = %s AND state = 'queued' AND index = coalesce(%s, index)
                ORDER BY index LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING job_id, index, first_sequence, sequences, claim_token
            """,
            (attempt_id, job_id, index),
        ).fetchone()


def finish(conn: Connection, shard: ClaimedShard, rows: int, checks: Mapping[str, Any]) -> bool:
    """Mark a claimed shard done, in the transaction that wrote its rows; False when the claim was lost: roll back."""
    if jobs.lock(conn, shard.job_id) is not JobState.RUNNING:
        return False
    done = conn.execute(
        """
        UPDATE keyhole.shard SET state = 'done', rows = %s, checks = %s, finished_at = clock_timestamp()
        WHERE job_id = %s AND index = %s AND claim_token = %s AND state = 'running'
        RETURNING extract(epoch FROM finished_at - started_at)::float8
        """,
        (rows, Jsonb(dict(checks)), shard.job_id, shard.index, shard.claim_token),
    ).fetchone()
    if done is None:
        return False
    progress = conn.execute(
        """
        UPDATE keyhole.job SET shards_done = shards_done + 1, rows = rows + %s,
            measured_s = measured_s + %s, crashes = 0, changed_at = clock_timestamp()
        WHERE id = %s RETURNING shards_done, shards, rows
        """,
        (rows, done[0], shard.job_id),
    ).fetchone()
    assert progress is not None
    events.append(
        conn,
        shard.job_id,
        "progress",
        {"shards_done": progress[0], "shards": progress[1], "rows": progress[2]},
    )
    return True


def is_done(conn: Connection, shard: ClaimedShard) -> bool:
    """Whether this very claim was finished: a commit may have succeeded although its client saw an error."""
    row = conn.execute(
        "SELECT FROM keyhole.shard WHERE job_id = %s AND index = %s AND claim_token = %s AND state = 'done'",
        (shard.job_id, shard.index, shard.claim_token),
    ).fetchone()
    return row is not None


def checks(conn: Connection, job_id: int) -> list[dict[str, Any]]:
    """The self-checks of a job's finished shards."""
    rows = conn.execute(
        "SELECT checks FROM keyhole.shard WHERE job_id = %s AND state = 'done' ORDER BY index", (job_id,)
    ).fetchall()
    return [row[0] or {} for row in rows]


def of_job(conn: Connection, job_id: int) -> list[ShardView]:
    with conn.cursor(row_factory=class_row(ShardView)) as cursor:
        return cursor.execute(
            "SELECT index, state, first_sequence, sequences, rows, started_at, finished_at "
            "FROM keyhole.shard WHERE job_id = %s ORDER BY index",
            (job_id,),
        ).fetchall()
