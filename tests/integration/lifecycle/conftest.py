"""A job in the database without API or workers, for tests of the rows themselves."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from db.repositories import jobs
from tests.conftest import MigratedDatabase

NewJob = Callable[..., int]


@pytest.fixture
def conn(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with database.connect() as connection:
        yield connection


@pytest.fixture
def new_job(conn: psycopg.Connection) -> NewJob:
    """Insert a job of one-sequence shards and return its id."""

    def insert(shards: int = 3, queue: str = "probe", priority: int = 0, max_attempts: int = 3) -> int:
        with conn.transaction():
            return jobs.insert(
                conn,
                jobs.NewJob(
                    kind="gradient_scale",
                    version=1,
                    queue=queue,
                    priority=priority,
                    label=None,
                    model_source="builtin:smollm2-135m-instruct",
                    model_identity="model",
                    dataset_source="builtin:python-docs",
                    dataset_identity="data",
                    parameters={},
                    reuse_key="key",
                    time_limit_s=3600,
                    max_attempts=max_attempts,
                    submitted_by=None,
                    shards=[(index, 1) for index in range(shards)],
                ),
            )

    return insert
