"""docs/sql.md is what the code says, and each of its examples runs as the analyst."""

import numpy as np
import psycopg
import pytest

from db import copy, documentation, partitions, summaries
from db.repositories import datasets, jobs
from services.contracts.kinds import KINDS
from services.contracts.probes import buried_keys, calibration
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import profile_rows
from tests.integration.db.conftest import TABLE, NewJob, gradient_scale_rows
from tests.integration.db.test_datasets import DOCUMENTS, TOKENS, WORDS, TokenSet

BURIED_KEY = {
    column.name: np.array([600 if "rank" in column.name else 1], np.float32 if column.type == "float4" else np.int16)
    for column in buried_keys.KEY_TABLE.columns[1:]
}
SWEEP = {
    column.name: np.zeros(1, {"float4": np.float32, "float8": np.float64, "bool": np.bool_}.get(column.type, np.int16))
    for column in calibration.SWEEP_TABLE.columns[1:]
}
EXAMPLES = {example.title: example.query for example in documentation.EXAMPLES}


def test_the_committed_file_is_up_to_date() -> None:
    assert documentation.PATH.read_text(encoding="utf-8") == documentation.text()


def test_every_view_and_column_is_documented(conn: psycopg.Connection) -> None:
    columns = conn.execute(
        "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) "
        "FROM information_schema.columns WHERE table_schema = 'analysis' GROUP BY table_name"
    ).fetchall()
    assert dict(columns) == {view: list(commented) for view, (_, commented) in documentation.views().items()}


def test_every_example_runs_and_finds_something(
    database: MigratedDatabase, conn: psycopg.Connection, new_job: NewJob
) -> None:
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(TOKENS, DOCUMENTS), lambda: WORDS)
    for seed in (0, 1):
        job_id = new_job(gradient_scale_rows(sequences=5, queries=7, seed=seed))
        jobs.describe(conn, job_id, dataset_id=dataset_id)
        partitions.finish(conn, TABLE.name, job_id)
        summaries.compute(conn, job_id, KINDS["gradient_scale"].metrics)
        with conn.transaction():
            partitions.create(conn, buried_keys.KEY_TABLE.name, job_id)
            copy.copy_rows(conn, buried_keys.KEY_TABLE, job_id, BURIED_KEY)
            partitions.create(conn, calibration.SWEEP_TABLE.name, job_id)
            copy.copy_rows(conn, calibration.SWEEP_TABLE, job_id, SWEEP)
        with conn.transaction():
            jobs.set_state(conn, job_id, JobState.SUCCEEDED)
    profile_rows.insert(conn, profile_rows.columns())
    new_job(state=JobState.FAILED)
    with database.connect_analyst() as reader:
        for title, query in EXAMPLES.items():
            rows = reader.execute(query).fetchall()  # type: ignore[arg-type]  # literals of the module
            assert rows, title


@pytest.mark.parametrize("query", EXAMPLES.values(), ids=EXAMPLES)
def test_examples_are_one_statement_of_a_width_that_fits(query: str) -> None:
    assert ";" not in query
    assert max(map(len, query.splitlines())) <= 120
