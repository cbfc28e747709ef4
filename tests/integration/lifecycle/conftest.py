"""A job in the database without API or workers, for tests of the rows themselves."""

from collections.abc import Callable

import psycopg
import pytest

from db.repositories import jobs
from tests.integration.new_jobs import submission

NewJob = Callable[..., int]


@pytest.fixture
def new_job(conn: psycopg.Connection) -> NewJob:
    """Insert a job of one-sequence shards and return its id."""

    def insert(shards: int = 3, queue: str = "probe", priority: int = 0, max_attempts: int = 3) -> int:
        slices = [(index, 1) for index in range(shards)]
        new = submission(shards=slices, queue=queue, priority=priority, max_attempts=max_attempts)
        with conn.transaction():
            return jobs.insert(conn, new)

    return insert
