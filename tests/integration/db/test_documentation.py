"""docs/sql.md is what the code says, and each of its examples runs as the analyst and finds what it says."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from db import copy, documentation, partitions, summaries
from db.examples import EXAMPLES, RUNS, Example
from db.repositories import datasets, jobs, suites
from services.contracts.errors import ErrorCode
from services.contracts.kinds import KINDS, Kind
from services.contracts.probes.pattern_stability import Checkpoint, PatternStabilityParameters
from services.contracts.states import JobState
from services.contracts.tables import ResultTable
from tests.conftest import MigratedDatabase
from tests.integration.db import example_rows, example_runs, example_watches
from tests.integration.db.test_datasets import DOCUMENTS, TOKENS, TokenSet
from tests.integration.new_jobs import submission

WORDS = [f"<{index}>" for index in range(50)]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
Run = Callable[[Example], list[tuple]]


def test_the_committed_file_is_up_to_date() -> None:
    assert documentation.PATH.read_text(encoding="utf-8") == documentation.text()


def test_every_view_and_column_is_documented(module_database: MigratedDatabase) -> None:
    with module_database.connect() as conn:
        columns = conn.execute(
            "SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) "
            "FROM information_schema.columns WHERE table_schema = 'analysis' GROUP BY table_name"
        ).fetchall()
    assert dict(columns) == {view: list(commented) for view, (_, commented) in documentation.views().items()}


def test_the_view_metric_is_what_the_contracts_say(module_database: MigratedDatabase) -> None:
    with module_database.connect_analyst() as reader:
        found = reader.execute(
            "SELECT kind, metric, table_name, meaning, histogram_low, histogram_width, bins FROM metric"
        ).fetchall()
    assert found == [
        (kind.name, each.name, each.table, each.comment, each.low, each.width, each.bins)
        for kind in KINDS.values()
        for each in kind.metrics
    ]
    assert len({(kind, metric) for kind, metric, *_ in found}) == len(found)


def test_every_kind_has_an_example() -> None:
    assert {kind.name for kind in KINDS.values() if kind.tables} <= {example.group for example in EXAMPLES}


@pytest.fixture(scope="module")
def first_jobs(module_database: MigratedDatabase) -> dict[str, list[int]]:
    """Two jobs of each kind with rows in its tables and no others, in a suite by kind, and a job that failed."""
    found: dict[str, list[int]] = {}
    with module_database.connect() as conn, conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(TOKENS, DOCUMENTS), lambda: WORDS)
        found[RUNS] = example_runs.insert(conn)
        for number, kind in enumerate(kind for kind in KINDS.values() if kind.tables):
            suite_id = suites.insert(conn, kind.name, None)
            found[kind.name] = [_finished_job(conn, kind, dataset_id, seed=2 * number + each) for each in (0, 1)]
            for position, job_id in enumerate(found[kind.name]):
                suites.add(conn, suite_id, position, job_id, reused=False)
        example_runs.insert_sweep(conn, found[RUNS])
        example_runs.insert_ladder(conn)
        example_watches.insert(conn, found[RUNS][0], found["attention_profile"][0])
        failed = jobs.insert(conn, submission())
        jobs.set_failed(conn, failed, ErrorCode.INVALID_REQUEST, "message", "hint", None)
    return found


def _finished_job(conn: psycopg.Connection, kind: Kind, dataset_id: int, seed: int) -> int:
    parameters = kind.parameters()
    others: list[tuple[str, str]] = []
    if kind.name == "pattern_stability":
        (run, step), *more = example_rows.CHECKPOINTS
        listed = [Checkpoint(model=f"path:{name}/{at}", run=name, step=at) for name, at in more]
        parameters = PatternStabilityParameters(run=run, step=step, checkpoints=listed)
        others = [(source, "identity") for source in parameters.other_models()]
    new = submission(kind=kind.name, parameters=parameters.model_dump(mode="json"), other_models=others)
    job_id = jobs.insert(conn, new)
    jobs.describe(conn, job_id, dataset_id=dataset_id)
    jobs.set_state(conn, job_id, JobState.RUNNING)
    for table in kind.tables:
        partitions.create(conn, table.name, job_id)
        copy.copy_rows(conn, table, job_id, example_rows.rows(table, seed))
    summaries.compute(conn, job_id, kind.metrics)
    jobs.set_state(conn, job_id, JobState.SUCCEEDED)
    return job_id


@pytest.fixture
def run(module_database: MigratedDatabase, first_jobs: dict[str, list[int]]) -> Iterator[Run]:
    """Runs an example as the analyst, over the jobs of its kind."""
    with module_database.connect_analyst() as reader:

        def execute(example: Example) -> list[tuple]:
            of_kind = first_jobs.get(example.group, first_jobs["gradient_scale"])
            query = re.sub(
                r"(?<=(?:job|run)_id = )[12]\b", lambda number: str(of_kind[int(number[0]) - 1]), example.query
            )
            return reader.execute(query).fetchall()  # type: ignore[arg-type]  # literals of the module

        yield execute


@every_example
def test_an_example_runs_and_finds_something_in_every_column(example: Example, run: Run) -> None:
    rows = run(example)
    assert rows
    nothing = [number for number, values in enumerate(zip(*rows, strict=True)) if all(map(_is_nothing, values))]
    assert nothing == []


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


@every_example
def test_an_example_is_one_statement_of_a_width_that_fits(example: Example) -> None:
    assert ";" not in example.query
    assert max(map(len, example.query.splitlines())) <= 120


def _rows_of(kind: str, table: int = 0) -> tuple[ResultTable, dict[str, np.ndarray]]:
    of_kind = KINDS[kind].tables[table]
    return of_kind, example_rows.rows(of_kind, seed=2 * list(KINDS).index(kind))


def _titled(start: str) -> Example:
    (example,) = [each for each in EXAMPLES if each.title.startswith(start)]
    return example


def test_the_worst_tokens_come_with_their_text(run: Run) -> None:
    _, made = _rows_of("shared_routing")
    places = np.argsort(-made["extra_loss_nats"])[:10]
    expected = [
        (WORDS[TOKENS[s, q]], WORDS[TOKENS[s, q + 1]]) for s, q in zip(made["sequence"], made["query"], strict=True)
    ]
    found = run(_titled("The tokens that lose most"))
    assert [row[3:5] for row in found] == [expected[place] for place in places]


def test_shares_of_sources_are_of_all_that_have_the_weight(run: Run) -> None:
    _, made = _rows_of("ratchet", table=1)
    sums = [
        [
            made[name][(made["band"] == band) & (made["sources"] > 0)].sum()
            for name in ("sources", "gain_positive", "step_positive")
        ]
        for band in range(5)
    ]
    found = [(int(row[1]), float(row[2]), float(row[3])) for row in run(_titled("Sources by attention weight"))]
    assert found == [pytest.approx((of_band[0], of_band[1] / of_band[0], of_band[2] / of_band[0])) for of_band in sums]


def test_distances_of_ends_and_to_the_end_are_those_of_the_right_checkpoints(run: Run) -> None:
    _, made = _rows_of("pattern_stability")

    def mean(name: str, first: int, second: int, layer: int | None = None) -> float:
        chosen = (made["first"] == first) & (made["second"] == second)
        return made[name][chosen if layer is None else chosen & (made["layer"] == layer)].mean()

    (ends,) = run(_titled("Distance between the last checkpoints"))
    assert ends[:4] == ("a", 20, "b", 20)
    assert ends[4:6] == pytest.approx((mean("js_nats", 1, 3), mean("paired_js_nats", 1, 3)))
    to_the_end = run(_titled("How far each checkpoint is"))
    assert [row[:3] for row in to_the_end] == [("a", 10, 0), ("a", 10, 1), ("b", 10, 0), ("b", 10, 1)]
    expected = [mean("js_nats", first, first + 1, layer) for first in (0, 2) for layer in (0, 1)]
    assert [row[3] for row in to_the_end] == pytest.approx(expected)
