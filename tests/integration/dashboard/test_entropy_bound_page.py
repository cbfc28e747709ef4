"""The entropy-bound page and its queries against NumPy over the same rows."""

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.pages import RESULTS
from dashboard.queries import entropy_bound as queries
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import bound_rows
from tests.integration.dashboard.opened import APP, texts


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def analyst(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect_analyst() as conn:
        yield conn


@pytest.fixture(scope="module")
def jobs(owner: psycopg.Connection) -> tuple[int, int]:
    """One of a model with a rotary embedding, and one whose weights and inputs bound its scores."""
    first = bound_rows.insert(owner, bound_rows.columns(1, seed=0), label="turned")
    return first, bound_rows.insert(owner, bound_rows.columns(0, seed=1), label="plain")


def opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["entropy_bound"])
    app.run()
    assert not app.exception
    return app


def test_heads_have_the_means_of_their_sequences(analyst: psycopg.Connection, jobs: tuple[int, int]) -> None:
    found = bound_rows.columns(1, seed=0)

    def by_head(name: str) -> np.ndarray:
        return found[name].astype(float).reshape(bound_rows.LAYERS * bound_rows.HEADS, -1)

    rows = queries.heads(analyst, [jobs[0]])
    assert [(row.layer, row.head) for row in rows] == [(layer, head) for layer in range(3) for head in range(2)]
    for name, column in {"entropy_nats": "entropy_mean", "gap_nats": "gap_mean"}.items():
        assert [getattr(row, name) for row in rows] == pytest.approx(by_head(column).mean(1).tolist(), rel=1e-5)
    for name in ("log10_bound", "tightness", "top_1", "top_8", "top_5_percent", "obstacles", "rank_rows"):
        assert [getattr(row, name) for row in rows] == pytest.approx(by_head(name).mean(1).tolist(), rel=1e-5), name
    for name in ("sigma", "weight_norm", "stable_rank", "input_norm"):
        column = "sigma_mean" if name == "sigma" else name
        geometric = np.exp(np.log(by_head(column)).mean(1))
        assert [getattr(row, name) for row in rows] == pytest.approx(geometric.tolist(), rel=1e-5), name
    assert [row.gap_min_nats for row in rows] == pytest.approx(by_head("gap_min").min(1).tolist())
    assert all(row.sigma_product is None and row.log10_product_bound is None for row in rows)


def test_heads_are_counted_by_the_kind_of_their_pattern(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]))
    line = app.dataframe[0].value.iloc[0]
    counts = [line[name] for name in ("Sparse, not low rank", "Sparse and low rank", "Spread and low rank")]
    assert counts == ["1", "2", "3"]
    assert line["Spread, not low rank"] == "0"
    assert "weights and inputs bound nothing in all layers: a rotary embedding in between" in texts(app)
    # everything is of low rank up to 80 %, and sparse from 10 %
    app.number_input(key="lowrank_choice").set_value(0.8).run()
    app.number_input(key="sparse_choice").set_value(0.1).run()
    assert app.dataframe[0].value.iloc[0]["Sparse and low rank"] == "6"
    assert (app.query_params["lowrank"], app.query_params["sparse"]) == ("0.8", "0.1")


def test_too_few_rows_for_the_threshold_are_said_and_no_head_is_counted(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), lowrank=str(1 / bound_rows.ROWS))
    line = app.dataframe[0].value.iloc[0]
    assert {line[name] for name in ("Sparse and low rank", "Spread and low rank", "Sparse, not low rank")} == {"–"}
    assert f"Its patterns have {bound_rows.ROWS} rows" in app.warning[0].value
    assert set(app.dataframe[1].value["pattern"]) == {"cannot be told"}
    app.number_input(key="lowrank_choice").set_value(0.1).run()
    assert not app.warning
    assert app.dataframe[0].value.iloc[0]["Sparse and low rank"] == "2"


def test_jobs_are_compared_and_the_product_is_offered_where_it_bounds(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=f"{jobs[0]},{jobs[1]}", bound="weights and inputs")
    assert app.dataframe[0].value["Job"].tolist() == list(jobs)
    assert f"Job {jobs[1]}: weights and inputs bound the scores in all layers." in texts(app)
    assert len(app.get("plotly_chart")) == 4


def test_the_table_of_heads_is_filtered_by_pattern_value_and_layer(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = {"jobs": str(jobs[0]), "pattern": "sparse and low rank", "layers": "1,2", "layer": "2", "head": "1"}
    app = opened(module_database, monkeypatch, **query)
    table = app.dataframe[1].value
    assert sorted(zip(table["layer"], table["head"], strict=True)) == [(1, 0), (2, 0)]
    query = {"jobs": str(jobs[0]), "where": "effective_rank", "side": "at least", "limit": "10"}
    table = opened(module_database, monkeypatch, **query).dataframe[1].value
    assert list(zip(table["layer"], table["head"], strict=True)) == [(0, 0)]


def test_a_head_is_shown_by_sequence(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), layer="2", head="1")
    assert "Layer 2, head 1" in [heading.value for heading in app.subheader]
    shown = app.dataframe[2].value
    assert shown["sequence"].tolist() == list(range(bound_rows.SEQUENCES))
    found = bound_rows.columns(1, seed=0)
    mine = (found["layer"] == 2) & (found["head"] == 1)
    np.testing.assert_allclose(shown["sigma_mean"], found["sigma_mean"][mine])
    proto = app.dataframe[2].proto
    assert "sigma_product" not in proto.column_order  # undefined in every row
    assert {"sigma_mean", "effective_rank"} <= set(proto.column_order)
    assert proto.placeholder == "–"
