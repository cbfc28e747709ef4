"""The pattern-stability page and its views against NumPy over the same rows."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.pages import RESULTS
from dashboard.queries import pattern_stability as queries
from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.pattern_stability import Checkpoint, PatternStabilityParameters
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import APP, texts

KIND = KINDS["pattern_stability"]
LAYERS, HEADS, SEQUENCES = 3, 2, 2
HOSTILE = "*b* <script>$x$ :red[r]"
RUNS = [("a", 0), ("a", 10), ("a", 500), (HOSTILE, 10), (HOSTILE, 500)]
PAIRS = list(combinations(range(len(RUNS)), 2))


def columns() -> dict[str, np.ndarray]:
    """Runs are 0.6 apart by index and 0.5 by assignment; within a run 0.02 to the end, but 0.55 at step 0."""
    rng = np.random.default_rng(0)
    shape = (LAYERS, HEADS, SEQUENCES, len(PAIRS))
    layer, head, sequence, pair = (axis.ravel() for axis in np.indices(shape))
    first, second = np.array(PAIRS).T[:, pair]
    run, step = np.array([0 if r == "a" else 1 for r, _ in RUNS]), np.array([s for _, s in RUNS])
    across = run[first] != run[second]
    by_index = np.where(across, 0.6, np.where(step[first] == 0, 0.55, 0.02)) + rng.normal(0, 0.0001, len(pair))
    by_assignment = np.where(across, by_index - 0.1, by_index)
    found = {
        "layer": layer.astype(np.int16),
        "head": head.astype(np.int16),
        "sequence": sequence.astype(np.int32),
        "first": first.astype(np.int16),
        "second": second.astype(np.int16),
    }
    for prefix, values in (("", by_index), ("paired_", by_assignment)):
        found[f"{prefix}js_nats"] = values.astype(np.float32)
        found[f"{prefix}total_variation"] = (values / 2).astype(np.float32)
        found[f"{prefix}cosine"] = (values / 3).astype(np.float32)
    found["paired_head"] = np.where(across, 1 - head, head).astype(np.int16)
    return {column.name: found[column.name] for column in KIND.tables[0].columns[1:]}


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def analyst(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect_analyst() as conn:
        yield conn


@pytest.fixture(scope="module")
def job_id(owner: psycopg.Connection) -> int:
    samples.insert_job(owner)  # of another kind, without checkpoints
    others = [Checkpoint(model=f"path:{number}", run=run, step=step) for number, (run, step) in enumerate(RUNS)][1:]
    parameters = PatternStabilityParameters(run="a", step=0, checkpoints=others)
    made = samples.insert_job(
        owner, "succeeded", kind=KIND.name, version=KIND.version, parameters=Jsonb(parameters.model_dump())
    )
    with owner.transaction():
        partitions.create(owner, KIND.tables[0].name, made)
        copy.copy_rows(owner, KIND.tables[0], made, columns())
        for number, other in enumerate(others):
            values = (made, number, f"path:/models/{other.model}", "sha256:0")
            owner.execute("INSERT INTO keyhole.job_model VALUES (%s, %s, %s, %s)", values)
    summaries.compute(owner, made, KIND.metrics)
    return made


def opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["pattern_stability"])
    app.run()
    assert not app.exception
    return app


def test_the_views_give_run_and_step_by_number_and_means_by_pair(analyst: psycopg.Connection, job_id: int) -> None:
    rows = analyst.execute(
        "SELECT number, run, step, model FROM pattern_checkpoint WHERE job_id = %s ORDER BY number", (job_id,)
    ).fetchall()
    assert [row[:3] for row in rows] == [(number, *run) for number, run in enumerate(RUNS)]
    assert [row[3] for row in rows[:2]] == ["builtin:smollm2-135m-instruct", "path:/models/path:1"]
    measured = columns()
    (found,) = analyst.execute(
        "SELECT js_nats, paired_cosine, assigned_elsewhere FROM pattern_stability "
        "WHERE job_id = %s AND layer = 1 AND first = 0 AND second = 3",
        (job_id,),
    ).fetchall()
    chosen = (measured["layer"] == 1) & (measured["first"] == 0) & (measured["second"] == 3)
    assert found[0] == pytest.approx(measured["js_nats"][chosen].mean(), rel=1e-6)
    assert found[1] == pytest.approx(measured["paired_cosine"][chosen].mean(), rel=1e-6)
    assert found[2] == 1


def test_heads_of_a_pair_are_means_over_sequences(analyst: psycopg.Connection, job_id: int) -> None:
    found = queries.head_distances(analyst, job_id, 1, 3, "total_variation")
    measured = columns()
    assert [(each.layer, each.head) for each in found] == [(layer, head) for layer in range(3) for head in range(2)]
    for each in found:
        chosen = (measured["layer"] == each.layer) & (measured["head"] == each.head)
        chosen &= (measured["first"] == 1) & (measured["second"] == 3)
        assert each.by_index == pytest.approx(measured["total_variation"][chosen].mean(), rel=1e-6)
        assert each.by_assignment == pytest.approx(measured["paired_total_variation"][chosen].mean(), rel=1e-6)
        assert each.paired_head == 1 - each.head


def test_the_page_says_from_which_step_the_claim_holds(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, job_id: int
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(job_id))
    assert "holds from step 10 on" in texts(app)
    shown = {metric.label: metric.value for metric in app.metric}
    assert (shown["Between ends"], shown["Holds from step"]) == ("0.500", "10")  # across runs by assignment
    assert len(app.get("plotly_chart")) == 4
    assert app.dataframe[0].value["Step"].tolist() == [0, 10]
    assert app.dataframe[0].value["All nearer than ends of runs"].tolist() == ["no", "yes"]
    assert app.dataframe[1].value["Run"].tolist() == [HOSTILE, "a", "a"]
    assert "Runs differ more than steps" in texts(app)
    assert app.selectbox(key="pair_first").options[:2] == [f"{HOSTILE}, step 10", f"{HOSTILE}, step 500"]
    assert r"\*b\*" in texts(app) and "<script>" not in "".join(caption.value for caption in app.caption)


def test_measure_pairing_layer_runs_and_pair_are_in_the_address(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, job_id: int
) -> None:
    app = opened(
        module_database, monkeypatch, jobs=str(job_id), measure="cosine", pairing="index", layer="2", pair="0,1"
    )
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Between ends"] == "0.200"
    assert (app.selectbox(key="pair_first").value, app.selectbox(key="pair_second").value) == (0, 1)
    app.selectbox(key="pair_second").set_value(4).run()
    assert app.query_params["pair"] == "0,4"
    app.selectbox(key="pairing_choice").set_value("assignment").run()
    assert {metric.label: metric.value for metric in app.metric}["Between ends"] == "0.167"
    app.multiselect(key="runs_choice").set_value([1]).run()
    assert "cannot be told" in texts(app)
    assert not app.exception
    bad = opened(module_database, monkeypatch, jobs=str(job_id), measure="x", layer="77", pair="5,5,9", runs="8")
    assert bad.selectbox(key="layer_choice").value == "mean"


def test_two_checkpoints_of_one_run_are_shown_without_a_verdict(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, owner: psycopg.Connection
) -> None:
    parameters = PatternStabilityParameters(checkpoints=[Checkpoint(model="path:x", step=5)])
    made = samples.insert_job(
        owner, "succeeded", kind=KIND.name, version=KIND.version, parameters=Jsonb(parameters.model_dump())
    )
    rows = {name: values[columns()["second"] == 1] for name, values in columns().items()}
    with owner.transaction():
        partitions.create(owner, KIND.tables[0].name, made)
        copy.copy_rows(owner, KIND.tables[0], made, rows)
    app = opened(module_database, monkeypatch, jobs=str(made))
    assert "cannot be told" in texts(app)
    assert len(app.get("plotly_chart")) == 4


def test_runs_of_one_checkpoint_each_end_the_page_with_their_heads(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, owner: psycopg.Connection
) -> None:
    parameters = PatternStabilityParameters(run="a", step=5, checkpoints=[Checkpoint(model="path:x", run="b", step=5)])
    made = samples.insert_job(
        owner, "succeeded", kind=KIND.name, version=KIND.version, parameters=Jsonb(parameters.model_dump())
    )
    rows = {name: values[columns()["second"] == 1] for name, values in columns().items()}
    with owner.transaction():
        partitions.create(owner, KIND.tables[0].name, made)
        copy.copy_rows(owner, KIND.tables[0], made, rows)
    app = opened(module_database, monkeypatch, jobs=str(made))
    assert len(app.get("plotly_chart")) == 2  # neither chart has a checkpoint before a run's end
    assert [element.type for element in app.main][-1] != "divider"
