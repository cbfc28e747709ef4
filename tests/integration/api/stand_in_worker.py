"""Carries a job out with made-up numbers, through the same repositories as the real worker: no model is needed."""

from collections.abc import Callable

import numpy as np
import psycopg

from db import copy, partitions, summaries
from db.repositories import attempts, jobs, shards
from services.contracts.errors import ErrorCode
from services.contracts.kinds import KINDS
from services.contracts.probes import gradient_scale
from services.contracts.states import AttemptOutcome, JobState

LAYERS, HEADS, QUERIES = 2, 3, 4


def rows_of(first_sequence: int) -> dict[str, np.ndarray]:
    """Every layer, head and query of one sequence; log10_d_a = layer + head / 10, log10_d_c is infinite for query 0."""
    layer, head, query = (axis.ravel() for axis in np.mgrid[0:LAYERS, 0:HEADS, 0:QUERIES])
    return {
        "layer": layer.astype(np.int16),
        "head": head.astype(np.int16),
        "sequence": np.full(layer.size, first_sequence, np.int32),
        "query": query.astype(np.int32),
        "log10_d_a": (layer + head / 10).astype(np.float32),
        "log10_d_c": np.where(query == 0, np.inf, 0.5).astype(np.float32),
    }


def carry_out(database_url: str, job_id: int, between: Callable[[int], None] = lambda index: None) -> None:
    """Claim the job's shards one by one, write their rows and finish the job; ``between`` runs after each shard."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        token = _begin(conn, job_id)
        with conn.transaction():
            partitions.create(conn, "gradient_scale", job_id)
            jobs.set_phase(conn, job_id, "measuring")
        while True:
            with conn.transaction():
                shard = shards.claim(conn, token)
            if shard is None:
                break
            with conn.transaction():
                written = copy.copy_rows(conn, gradient_scale.TABLE, job_id, rows_of(shard.first_sequence))
                assert shards.finish(conn, shard, written, {"identity": 0.0})
            between(shard.index)
        with conn.transaction():
            jobs.lock(conn, job_id)
            partitions.finish(conn, "gradient_scale", job_id)
            summaries.compute(conn, job_id, KINDS["gradient_scale"].metrics)
            jobs.describe(conn, job_id, environment={"device": "cpu"}, checks={"parity": {"logits": 1e-6}})
            jobs.set_state(conn, job_id, JobState.SUCCEEDED)
            attempts.end(conn, token, AttemptOutcome.COMPLETED)


def fail(database_url: str, job_id: int) -> None:
    """Begin the job and fail it as a child that ran out of memory."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        token = _begin(conn, job_id)
        with conn.transaction():
            attempts.fail(
                conn,
                token,
                AttemptOutcome.FAILED,
                ErrorCode.OUT_OF_MEMORY,
                "The device ran out of memory.",
                "Lower length or batch.",
                'Traceback (most recent call last):\n  File "probe.py", line 1\nMemoryError',
            )


def _begin(conn: psycopg.Connection, job_id: int):
    """Open an attempt on this job, whatever else waits: others are put behind it."""
    conn.execute("UPDATE keyhole.job SET priority = 101 WHERE id = %s", (job_id,))
    with conn.transaction():
        attempt = attempts.open_attempt(conn, "probe", "stand-in", "cpu", 60)
    assert attempt is not None
    assert attempt.job_id == job_id
    return attempt.token
