"""The ratchet page and the playground, as a viewer would see them."""

import numpy as np
import pandas as pd
import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.pages import PLAYGROUND, RESULTS
from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.ratchet import BAND_TABLE, BANDS, TABLE
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import Open, texts

KIND = KINDS["ratchet"]
LAYERS, HEADS, SEQUENCES, QUERIES = 2, 2, 2, (3, 5, 6)
WORDS = [["<s>", "some", " words", "\n", " of", " a", " text"], ["<s>", "and", " some", " more", " of", " a", " kind"]]


@pytest.fixture(scope="module")
def database(module_database: MigratedDatabase) -> MigratedDatabase:
    """One database for all tests here: none writes to it but ``jobs``."""
    return module_database


@pytest.fixture(scope="module")
def jobs(database: MigratedDatabase) -> list[int]:
    """Two jobs; in both, the lead of layer 1's heads always grows and that of layer 0 never."""
    with database.connect() as conn:
        dataset = samples.insert_dataset(conn, WORDS)
        return [_insert(conn, seed, dataset) for seed in (0, 1)]


def _insert(conn: psycopg.Connection, seed: int, dataset: int) -> int:
    rng = np.random.default_rng(seed)
    layer, head, sequence, query = (
        axis.ravel() for axis in np.meshgrid(range(LAYERS), range(HEADS), range(SEQUENCES), QUERIES, indexing="ij")
    )
    rows = len(layer)
    columns = {
        "layer": layer.astype(np.int16),
        "head": head.astype(np.int16),
        "sequence": sequence.astype(np.int32),
        "query": query.astype(np.int32),
        "top_key": np.where(query == 3, 0, 2).astype(np.int32),
        "runner_up": np.ones(rows, np.int32),
    }
    floats = [column.name for column in TABLE.columns if column.type == "float4"]
    columns |= {name: np.abs(rng.normal(size=rows)).astype(np.float32) for name in floats}
    columns["gain_top"] = (columns["gain_runner_up"] + np.where(layer == 1, 0.1, -0.1)).astype(np.float32)
    for name in floats[floats.index("gain_top") :]:
        columns[name][0] = np.nan
    layer, head, sequence, band = (
        axis.ravel() for axis in np.meshgrid(*map(range, (LAYERS, HEADS, SEQUENCES, len(BANDS))), indexing="ij")
    )
    sources = np.where(band == 4, 0, 10 * (1 + sequence)).astype(np.int64)
    with_sources = np.where(sources > 0, 0.25, np.nan).astype(np.float32)
    bands = {
        "layer": layer.astype(np.int16),
        "head": head.astype(np.int16),
        "sequence": sequence.astype(np.int32),
        "band": band.astype(np.int16),
        "sources": sources,
        "gain_positive": np.where(sequence == 0, 0, sources),
        "step_positive": sources // 2,
        "mean_gain": with_sources,
        "mean_abs_step": with_sources,
    }
    job_id = samples.insert_job(conn, "succeeded", kind=KIND.name, rows=rows, dataset_id=dataset, label=f"seed {seed}")
    with conn.transaction():
        for table, values in ((TABLE, columns), (BAND_TABLE, bands)):
            partitions.create(conn, table.name, job_id)
            copy.copy_rows(conn, table, job_id, values)
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id


def table(app: AppTest, column: str) -> pd.DataFrame:
    """The table that has this column."""
    return next(frame.value for frame in app.dataframe if column in frame.value.columns)


def test_shares_bands_and_rows_of_a_job_are_shown(open_page: Open, jobs: list[int]) -> None:
    app = open_page(RESULTS["ratchet"], jobs=str(jobs[0]), layer="1", head="0", scope="head")
    shown = {metric.label: metric.value for metric in app.metric}
    # of 24 rows one is undefined; the lead grows in the twelve of layer 1
    assert shown["Lead grows"] == f"{100 * 12 / 23:.1f} %"
    assert shown["Top key is 0"] == f"{100 * 7 / 23:.1f} %"
    assert "Left out: 1 query that" in texts(app)
    bands = table(app, "Sources")
    # sequence 1 has twice the sources of sequence 0, and all of them gain
    assert bands["Sources"].tolist() == [30, 30, 30, 30, 0]
    assert bands["Gain advantage"].tolist() == ["66.7 %"] * 4 + ["–"]
    assert bands["Mean gain"].tolist() == ["+0.2500"] * 4 + ["–"]
    rows = table(app, "Runner-up")
    assert len(rows) == SEQUENCES * len(QUERIES)
    at_three = rows[(rows["Query"] == 3) & (rows["Sequence"] == 0)].iloc[0]
    assert (at_three["Token"], at_three["Top key"], at_three["Runner-up"]) == ("⏎", "<s> (0)", "some (1)")
    app.segmented_control(key="top_choice").set_value("not the first position").run()
    assert app.query_params["top"] == "not the first position"
    rows = table(app, "Runner-up")
    assert set(rows["Query"]) == {5, 6}


@pytest.mark.parametrize("name", ["gain_top", "gain_lead"])
def test_gains_of_trained_models_lie_within_the_bins(name: str) -> None:
    metric = next(metric for metric in KIND.metrics if metric.name == name)
    assert metric.low < -2.01 < 2.01 < metric.low + metric.width * metric.bins


def test_jobs_are_compared_and_another_order_is_kept_in_the_address(open_page: Open, jobs: list[int]) -> None:
    app = open_page(RESULTS["ratchet"], jobs=f"{jobs[0]},{jobs[1]}", rows=str(jobs[1]), order="odds shrink most")
    assert app.dataframe[0].value["Label"].tolist() == ["seed 0", "seed 1"]
    assert app.segmented_control(key="order_choice").value == "odds shrink most"
    rows = table(app, "Runner-up")
    assert rows["Odds grow"].is_monotonic_increasing
    assert len(app.get("plotly_chart")) == 4


def test_a_scope_or_head_that_no_job_has_is_said(open_page: Open, jobs: list[int]) -> None:
    app = open_page(RESULTS["ratchet"], jobs=str(jobs[0]), statistic="ratchets", scope="layer")
    assert not app.warning
    assert len(app.get("plotly_chart")) == 4


def test_the_three_keys_follow_the_address_and_the_sliders(open_page: Open) -> None:
    app = open_page(PLAYGROUND, epsilon="-3", advantage="2")
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Query update"] == f"{1e-3 * 2 / np.sqrt(2):.3g}"
    assert shown["Smallest / largest"] == "0.001"
    app.slider(key="epsilon_choice").set_value(-1.0).run()
    assert app.query_params["epsilon"] == "-1.0"
    assert {metric.label: metric.value for metric in app.metric}["Smallest / largest"] == "0.1"
    app.segmented_control(key="setting_choice").set_value("free").run()
    app.number_input(key="k3y_choice").set_value(0.0).run()
    assert not app.exception
    # without a component of the third key, nothing moves the output along it
    assert app.dataframe[0].value["Update, y"].tolist() == [0, 0, 0]


def test_the_credit_loop_plays_and_keeps_its_step_in_the_address(open_page: Open) -> None:
    app = open_page(PLAYGROUND, example="loop", step="40", gap="0.5", sources="3", nonsense="1", eta_v="x")
    shown = {metric.label: metric.value for metric in app.metric}
    source, weight = shown["Top source"].split(": ")
    assert (source, float(weight) > 0.5) == ("1", True)
    app.slider(key="step_choice").set_value(0).run()
    assert app.query_params["step"] == "0"
    sources = app.dataframe[0].value
    assert sources["Advantage"].tolist() == [0, 0, 0]
    weights = np.exp([0.5, 0, 0]) / np.exp([0.5, 0, 0]).sum()
    np.testing.assert_allclose(sources["Predicted change of advantage"], 0.3 * (weights - weights @ weights), rtol=1e-9)
    app.segmented_control(key="loss_choice").set_value("target").run()
    assert not app.exception


def test_the_view_of_steps_multiplies_them_out(database: MigratedDatabase, jobs: list[int]) -> None:
    names = [column.name for column in TABLE.columns]
    with database.connect() as conn:
        stored = conn.execute(
            f"SELECT {', '.join(names)} FROM keyhole.ratchet WHERE job_id = %s", (jobs[0],)
        ).fetchall()
        seen = conn.execute(
            "SELECT top_weight, runner_up_weight, delta_advantage_top, delta_score_top, delta_log_odds_rest "
            "FROM analysis.ratchet_steps WHERE job_id = %s ORDER BY layer, head, sequence, query",
            (jobs[0],),
        ).fetchall()
    row = {name: np.array(values, float) for name, values in zip(names, zip(*stored, strict=True), strict=True)}
    order = np.lexsort([row[name] for name in ("query", "sequence", "head", "layer")])
    row = {name: values[order] for name, values in row.items()}
    top, size = 1 / (1 + np.exp(-row["log_odds_rest"])), 10 ** row["log10_delta"]
    expected = (
        top,
        top * np.exp(-row["log_odds_runner_up"]),
        size**2 * 10 ** row["log10_x_squared"] * row["gain_top"],
        size * top * row["advantage_top"],
        size * row["odds_growth_rest"],
    )
    assert len(seen) == len(stored) > 0
    np.testing.assert_allclose(np.array(seen, float).T, expected, rtol=1e-5)
