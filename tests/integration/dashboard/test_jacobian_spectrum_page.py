"""The Jacobian page and its queries against NumPy over the same rows."""

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.pages import RESULTS
from dashboard.queries import jacobian_spectrum as queries
from dashboard.views import jacobian_spectrum_heads as heads_view
from services.contracts.probes.jacobian_spectrum import MODE_TABLE
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import jacobian_rows, samples
from tests.integration.dashboard.test_pages import APP, texts

WORDS = [[f" w{sequence}.{position}" for position in range(12)] for sequence in range(jacobian_rows.SEQUENCES)]


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
    """One job of the built-in model, and one of the article's."""
    dataset = samples.insert_dataset(owner, WORDS)
    first = jacobian_rows.insert(owner, jacobian_rows.columns(0), dataset_id=dataset)
    second = jacobian_rows.insert(
        owner, jacobian_rows.columns(1), dataset_id=dataset, model_source="hf:Qwen/Qwen2.5-1.5B@8faed761d45a263340a0"
    )
    return first, second


def opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["jacobian_spectrum"])
    app.run()
    assert not app.exception
    return app


def table(app: AppTest, first_column: str):
    return next(each.value for each in app.dataframe if each.value.columns[0] == first_column)


def test_heads_have_medians_and_shares_of_their_defined_rows(
    analyst: psycopg.Connection, jobs: tuple[int, int]
) -> None:
    found = jacobian_rows.columns(0)
    rows = queries.heads(analyst, [jobs[0]])
    assert [row.site for row in rows] == [(layer, head) for layer in range(4) for head in range(2)]
    for row in rows:
        ranks = jacobian_rows.of_head(found, "effective_rank", *row.site)
        assert row.queries == len(ranks) == 6
        assert row.largest_effective_rank == pytest.approx(ranks.max())
        assert row.share_below_10 == pytest.approx((ranks < 10).mean())
        for name in ("effective_rank", "effective_rank_sigma", "participation_ratio", "modes_above_1e_3"):
            assert getattr(row, name) == pytest.approx(np.median(jacobian_rows.of_head(found, name, *row.site)))
    assert {row.share_below_10 for row in rows} - {0.0, 1.0}  # some head is mixed: the share can be wrong


def test_mean_spectra_weigh_every_query_alike_and_bands_every_sequence(
    analyst: psycopg.Connection, jobs: tuple[int, int]
) -> None:
    found = jacobian_rows.columns(0)[MODE_TABLE.name]
    rows = queries.modes(analyst, [jobs[0]], [(1, 0), (2, 1)])
    assert {(row.layer, row.head) for row in rows} == {(1, 0), (2, 1)} and len(rows) == 2 * jacobian_rows.MODES
    for row in rows:
        here = (found["layer"] == row.layer) & (found["head"] == row.head) & (found["mode"] == row.mode)
        assert row.queries == found["queries"][here].sum()
        assert row.mean == pytest.approx(np.average(found["mean"][here], weights=found["queries"][here]))
        assert row.q05 == pytest.approx(found["q05"][here].mean())
        assert row.q95 == pytest.approx(found["q95"][here].mean())


def test_queries_of_a_head_come_in_order_with_their_text(analyst: psycopg.Connection, jobs: tuple[int, int]) -> None:
    ranks = jacobian_rows.of_head(jacobian_rows.columns(0), "effective_rank", 2, 1)
    largest = queries.head_rows(analyst, jobs[0], (2, 1), "largest effective rank", limit=4, before=2)
    assert [row.effective_rank for row in largest] == pytest.approx(np.sort(ranks)[::-1][:4])
    smallest = queries.head_rows(analyst, jobs[0], (2, 1), "smallest effective rank", limit=4, before=2)
    assert [row.effective_rank for row in smallest] == pytest.approx(np.sort(ranks)[:4])
    one = largest[0]
    assert one.token == WORDS[one.sequence][one.query]
    assert one.context == "".join(WORDS[one.sequence][one.query - 2 : one.query])


def test_the_page_begins_with_heads_at_three_depths_and_has_their_table(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]))
    assert app.multiselect(key="sites_choice").value == ["0.0", "2.0"]  # of 4 layers; a fourth there is not
    shown = table(app, "Statistic")
    assert list(shown.columns[1:]) == ["Layer 0, head 0", "Layer 2, head 0"]  # no column of the article's
    ranks = jacobian_rows.of_head(jacobian_rows.columns(0), "effective_rank", 2, 0)
    assert shown.iloc[0, 2] == f"{np.median(ranks):.2f}"
    assert "at least 99 % of the queries below 10" in texts(app)


def test_the_articles_figures_stand_beside_those_of_its_model(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=f"{jobs[0]},{jobs[1]}", sites="1.1,0.0")
    shown = table(app, "Statistic").set_index("Statistic")
    assert list(shown.columns[:4]) == [f"job {job}: layer {at}" for at in ("1, head 1", "0, head 0") for job in jobs]
    article = shown["Article: layer 14, head 0"]
    assert article["Effective rank using normalized σ, median"] == "3.23"
    assert article["Top attention weight, median"] == "75.0 %"
    assert len(shown.columns) == 4 + 3


def test_the_address_keeps_heads_order_and_job_of_the_rows(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = {"jobs": str(jobs[0]), "sites": "3.1,2.0", "order": "smallest effective rank", "rows": f"{jobs[0]}.2.0"}
    app = opened(module_database, monkeypatch, **address)
    ranks = jacobian_rows.of_head(jacobian_rows.columns(0), "effective_rank", 2, 0)
    assert table(app, "Sequence")["Effective rank"].tolist() == pytest.approx(np.sort(ranks))
    app.multiselect(key="sites_choice").set_value(["1.0"]).run()
    assert not app.exception
    assert app.query_params["sites"] in ("1.0", ["1.0"])
    assert list(table(app, "Statistic").columns) == ["Statistic", "Layer 1, head 0"]


@pytest.mark.parametrize("sites", ["none", "9.9", "2.", "x.y,0.7", "-1.0"])
def test_heads_that_are_not_there_are_ignored(
    sites: str, module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), sites=sites)
    assert "Choose heads above" in texts(app)


def test_a_click_adds_a_head_or_takes_it_away() -> None:
    assert heads_view.toggled([(0, 0)], (1, 1)) == [(0, 0), (1, 1)]
    assert heads_view.toggled([(0, 0), (1, 1)], (0, 0)) == [(1, 1)]
    full = [(layer, 0) for layer in range(heads_view.MOST_SITES)]
    assert heads_view.toggled(full, (9, 9)) == [*full[1:], (9, 9)]
