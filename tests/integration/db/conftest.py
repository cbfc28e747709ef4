"""Jobs and rows made without workers, for tests of the database layer."""

from collections.abc import Callable

import numpy as np
import psycopg
import pytest

from db import copy, partitions
from db.repositories import jobs
from services.contracts.kinds import KINDS
from services.contracts.states import JobState
from tests.integration.new_jobs import submission

TABLE = KINDS["gradient_scale"].tables[0]
Columns = dict[str, np.ndarray]
NewJob = Callable[..., int]


@pytest.fixture
def new_job(conn: psycopg.Connection) -> NewJob:
    """Insert a job, with these rows if given, in this state; returns its id."""

    def insert(columns: Columns | None = None, state: JobState = JobState.RUNNING) -> int:
        with conn.transaction():
            job_id = jobs.insert(conn, submission())
            jobs.set_state(conn, job_id, state)
            if columns is not None:
                partitions.create(conn, TABLE.name, job_id)
                copy.copy_rows(conn, TABLE, job_id, columns)
        return job_id

    return insert


def gradient_scale_rows(
    sequences: int = 2, layers: int = 2, heads: int = 3, queries: int = 5, seed: int = 0
) -> Columns:
    """Random rows of the table in the order a probe writes them."""
    layer, head, sequence, query = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(layers, dtype=np.int16),
            np.arange(heads, dtype=np.int16),
            np.arange(sequences, dtype=np.int32),
            np.arange(queries, dtype=np.int32),
            indexing="ij",
        )
    )
    random = np.random.default_rng(seed)
    return {
        "layer": layer,
        "head": head,
        "sequence": sequence,
        "query": query,
        "log10_d_a": random.gamma(4.0, 1.0, layer.size).astype(np.float32),
        "log10_d_c": random.gamma(1.0, 0.7, layer.size).astype(np.float32),
    }


def stored_rows(conn: psycopg.Connection, job_id: int) -> list[tuple]:
    names = ", ".join(column.name for column in TABLE.columns)
    return conn.execute(
        f"SELECT {names} FROM keyhole.{TABLE.name} WHERE job_id = %s ORDER BY layer, head, sequence, query", (job_id,)
    ).fetchall()
