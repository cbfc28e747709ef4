"""A monkey works the life cycle at random, over many seeds; the invariants are checked in SQL after every step."""

import random

import psycopg
import pytest

from db.repositories import attempts, jobs, shards
from db.repositories.attempts import OpenAttempt
from db.repositories.shards import ClaimedShard
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import AttemptOutcome
from tests.integration.lifecycle.conftest import NewJob

INVARIANTS = {
    "a running shard belongs to a live attempt": """
        SELECT count(*) FROM keyhole.shard JOIN keyhole.attempt ON attempt.id = shard.attempt_id
        WHERE shard.state = 'running' AND attempt.ended_at IS NOT NULL""",
    "the job's counters are those of its shards": """
        SELECT count(*) FROM keyhole.job WHERE (shards_done, rows) <>
            (SELECT count(*), coalesce(sum(rows), 0) FROM keyhole.shard WHERE job_id = job.id AND state = 'done')""",
    "a running job has a live attempt": """
        SELECT count(*) FROM keyhole.job WHERE state = 'running'
        AND NOT EXISTS (SELECT FROM keyhole.attempt WHERE job_id = job.id AND ended_at IS NULL)""",
    "only a job in work has a live attempt": """
        SELECT count(*) FROM keyhole.job WHERE state NOT IN ('running', 'cancelling')
        AND EXISTS (SELECT FROM keyhole.attempt WHERE job_id = job.id AND ended_at IS NULL)""",
    "a live attempt holds at most the shards it claimed": """
        SELECT count(*) FROM keyhole.shard JOIN keyhole.attempt ON attempt.id = shard.attempt_id
        WHERE attempt.job_id <> shard.job_id""",
    "a failed job carries its error and no other does": """
        SELECT count(*) FROM keyhole.job WHERE (state = 'failed') <> (error_code IS NOT NULL)""",
    "terminal jobs and no others have an end": """
        SELECT count(*) FROM keyhole.job
        WHERE (state IN ('succeeded', 'failed', 'cancelled')) <> (finished_at IS NOT NULL)""",
}


@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_whatever_happens(conn: psycopg.Connection, new_job: NewJob, seed: int) -> None:
    monkey = random.Random(seed)
    job_ids = [new_job(shards=monkey.randint(1, 4), max_attempts=2) for _ in range(2)]
    opened: list[OpenAttempt] = []
    claims: list[ClaimedShard] = []
    done: set[tuple[int, int]] = set()
    for _ in range(80):
        action = monkey.choice(["open", "claim", "claim", "finish", "finish", "end", "fail", "cancel", "retry"])
        try:
            with conn.transaction():
                if action == "open" and (attempt := attempts.open_attempt(conn, "probe", "w", "cpu", 60)):
                    opened.append(attempt)
                elif action == "claim" and opened and (shard := shards.claim(conn, monkey.choice(opened).token)):
                    claims.append(shard)
                elif action == "finish" and claims:
                    shard = monkey.choice(claims)
                    if shards.finish(conn, shard, monkey.randint(0, 9), {}):
                        assert (shard.job_id, shard.index) not in done
                        done.add((shard.job_id, shard.index))
                elif action == "end" and opened:
                    attempts.end(conn, monkey.choice(opened).token, monkey.choice(list(AttemptOutcome)))
                elif action == "fail" and opened:
                    token = monkey.choice(opened).token
                    attempts.fail(conn, token, AttemptOutcome.FAILED, ErrorCode.UNEXPECTED, "monkey")
                elif action == "cancel":
                    jobs.request_cancel(conn, monkey.choice(job_ids))
                elif action == "retry":
                    jobs.retry(conn, monkey.choice(job_ids))
        except KeyholeError as error:
            assert error.code is ErrorCode.CONFLICT
        for name, query in INVARIANTS.items():
            violations = conn.execute(query).fetchone()
            assert violations == (0,), f"after {action}: not so: {name}"
