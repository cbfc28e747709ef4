"""The SQL of docs/results.md, as it stands there: tables of Figure 4 out of distances between three runs' patterns."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import psycopg
import pytest

from db import copy, partitions
from db.repositories import jobs
from services.contracts.kinds import KINDS
from services.contracts.probes.pattern_stability import Checkpoint, PatternStabilityParameters
from services.contracts.states import JobState
from tests.conftest import MigratedDatabase
from tests.integration.db import example_rows
from tests.integration.new_jobs import submission
from tests.integration.new_runs import trained_run

RESULTS = Path(__file__).parents[3] / "docs" / "results.md"
SEEDS, STEPS = (0, 1, 2), (0, 100, 300)
CHECKPOINTS = [(seed, step) for seed in SEEDS for step in STEPS]
(TABLE,) = KINDS["pattern_stability"].tables


@pytest.fixture
def queries() -> list[str]:
    (block,) = [block for block in blocks() if "pattern_stability" in block]
    return [query for query in block.split(";") if query.strip()]


def blocks() -> list[str]:
    return re.findall(r"```sql\n(.*?)```", RESULTS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def job_id(conn: psycopg.Connection) -> int:
    run_ids = {seed: trained_run(conn, name=f"seed {seed}", seed=seed) for seed in SEEDS}
    (_, first), *others = [(run_ids[seed], step) for seed, step in CHECKPOINTS]
    compared = [Checkpoint(model=f"run:{run_id}@{step}", run=f"run {run_id}", step=step) for run_id, step in others]
    asked = PatternStabilityParameters(run=f"run {run_ids[0]}", step=first, checkpoints=compared)
    new = submission(
        kind="pattern_stability",
        parameters=asked.model_dump(mode="json"),
        other_models=[(source, "identity") for source in asked.other_models()],
    )
    job_id = jobs.insert(conn, new)
    jobs.set_state(conn, job_id, JobState.RUNNING)
    partitions.create(conn, TABLE.name, job_id)
    copy.copy_rows(conn, TABLE, job_id, distances())
    jobs.set_state(conn, job_id, JobState.SUCCEEDED)
    return job_id


def distances() -> dict[str, np.ndarray]:
    """Random ones of two layers, three heads and five sequences, between every two checkpoints."""
    one_pair = example_rows.rows(TABLE, seed=0)
    one_pair = {name: values[(one_pair["first"] == 0) & (one_pair["second"] == 1)] for name, values in one_pair.items()}
    pairs = list(combinations(range(len(CHECKPOINTS)), 2))
    rows = {name: np.tile(values, len(pairs)) for name, values in one_pair.items()}
    size = len(one_pair["first"])
    for name, numbers in zip(("first", "second"), zip(*pairs, strict=True), strict=True):
        rows[name] = np.repeat(np.array(numbers, rows[name].dtype), size)
    generator = np.random.default_rng(1)
    for name in ("js_nats", "paired_js_nats"):
        rows[name] = generator.uniform(0, 0.5, len(rows[name])).astype(rows[name].dtype)
    return rows


@pytest.fixture
def ask(database: MigratedDatabase, job_id: int) -> Callable[[str], list[tuple]]:
    def execute(query: str) -> list[tuple]:
        with database.connect_analyst() as reader:
            return reader.execute(query.replace("job_id = 4", f"job_id = {job_id}")).fetchall()  # type: ignore[arg-type]  # the file's

    return execute


def mean(name: str, one: tuple[int, int], other: tuple[int, int]) -> float:
    rows = distances()
    chosen = (rows["first"] == CHECKPOINTS.index(one)) & (rows["second"] == CHECKPOINTS.index(other))
    return float(rows[name][chosen].mean(dtype=np.float64))


def test_the_first_is_the_distance_of_each_step_of_a_run_to_its_end(queries, ask):
    expected = [(step, seed, mean("js_nats", (seed, step), (seed, 300))) for step in (0, 100) for seed in SEEDS]
    assert ask(queries[0]) == [(step, seed, pytest.approx(value, rel=1e-6)) for step, seed, value in expected]


def test_the_second_is_the_distance_of_every_two_ends_by_index_and_by_assignment(queries, ask):
    ends = [((one, 300), (other, 300)) for one, other in combinations(SEEDS, 2)]
    expected = [(a[0], b[0], mean("js_nats", a, b), mean("paired_js_nats", a, b)) for a, b in ends]
    # float32 rows, added up in another order: some 1e-7
    assert ask(queries[1]) == [
        (a, b, pytest.approx(i, rel=1e-6), pytest.approx(p, rel=1e-6)) for a, b, i, p in expected
    ]


def test_every_statement_can_be_asked(ask: Callable[[str], list[tuple]]) -> None:
    statements = [statement for block in blocks() for statement in block.split(";") if statement.strip()]
    assert len(statements) >= 4
    for statement in statements:
        ask(statement)
