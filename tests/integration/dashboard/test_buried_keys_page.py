"""The buried-keys page and its queries against NumPy over the same rows."""

import html
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.formats import power_of_ten
from dashboard.pages import RESULTS
from dashboard.queries import buried_keys as queries
from dashboard.queries.buried_keys import Filters, Order
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import coalition_rows, samples
from tests.integration.dashboard.coalition_rows import HOSTILE, Rows
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
def rows() -> Rows:
    return coalition_rows.measured()


@pytest.fixture(scope="module")
def job_id(owner: psycopg.Connection, rows: Rows) -> int:
    dataset = samples.insert_dataset(owner, coalition_rows.words())
    return coalition_rows.insert(owner, rows, coalition_rows.parameters(), label="whole", dataset_id=dataset)


@pytest.fixture(scope="module")
def bare_job_id(owner: psycopg.Connection) -> int:
    """A job without text, in which no key qualifies and no pick is stored."""
    options = {"min_heads": 4, "min_attention_rank": 23, "picks": "none"}
    rows = coalition_rows.measured(**options)
    assert not len(rows["buried_key"]["key"])
    return coalition_rows.insert(owner, rows, coalition_rows.parameters(**options), label="bare")


def opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["buried_keys"])
    app.run()
    assert not app.exception
    return app


def frame(app: AppTest, column: str):
    return next(each.value for each in app.dataframe if column in each.value.columns)


@pytest.mark.parametrize(
    ("order", "sorting"),
    [
        ("largest score", ("score",)),
        ("most buried", ("attention_rank_smallest", "score")),
        ("most heads", ("heads", "score")),
    ],
)
@pytest.mark.parametrize(
    "filters", [Filters(), Filters(layer=1, direction=-1), Filters(least_rank=5), Filters(text="W1.1")]
)
def test_keys_are_ranked_and_filtered_with_their_texts(
    analyst: psycopg.Connection, rows: Rows, job_id: int, filters: Filters, order: Order, sorting: tuple[str, ...]
) -> None:
    keys, words = rows["buried_key"], coalition_rows.words()
    wanted = [
        index
        for index in range(len(keys["key"]))
        if (filters.layer is None or keys["layer"][index] == filters.layer)
        and (filters.direction is None or keys["direction"][index] == filters.direction)
        and keys["attention_rank_smallest"][index] >= filters.least_rank
        and filters.text.lower() in words[keys["sequence"][index]][keys["key"][index]].lower()
    ]
    places = ("layer", "sequence", "query", "place")
    wanted.sort(key=lambda i: (*(-float(keys[name][i]) for name in sorting), *(int(keys[name][i]) for name in places)))
    found = queries.key_rows(analyst, job_id, filters, order, limit=12, before=3)
    assert 0 < len(found) == min(12, len(wanted))
    for row, index in zip(found, wanted, strict=False):
        for name, values in keys.items():
            assert getattr(row, name) == values[index], name
        line = words[row.sequence]
        assert (row.query_token, row.key_token) == (line[row.query], line[row.key])
        assert row.query_context == "".join(line[row.query - 3 : row.query])
        assert (row.key_context or "") == "".join(line[max(0, row.key - 3) : row.key])


def test_wildcards_and_nul_characters_in_the_token_filter_are_plain_signs(
    analyst: psycopg.Connection, job_id: int
) -> None:
    for text in ("%", "_", "\\", "w%"):
        assert queries.key_rows(analyst, job_id, Filters(text=text), "largest score") == []
    assert len(queries.key_rows(analyst, job_id, Filters(text="\0"), "largest score", limit=3)) == 3


def test_tokens_are_counted_over_all_their_keys(analyst: psycopg.Connection, rows: Rows, job_id: int) -> None:
    keys, words = rows["buried_key"], coalition_rows.words()
    token = np.array([words[s][k] for s, k in zip(keys["sequence"], keys["key"], strict=True)])
    found = queries.token_rows(analyst, job_id, Filters(), limit=1000)
    assert {row.token for row in found} == set(token)
    assert [row.keys for row in found] == sorted((row.keys for row in found), reverse=True)
    hostile = next(row for row in found if row.token == HOSTILE)
    mine = token == HOSTILE
    assert hostile.keys == mine.sum()
    assert hostile.share_less == pytest.approx(np.mean(keys["direction"][mine] < 0))
    assert hostile.largest_score == pytest.approx(keys["score"][mine].max())
    assert hostile.median_rank == np.median(keys["attention_rank_median"][mine])


def test_queries_that_abstain_come_with_those_closest_to_a_coalition_first(
    analyst: psycopg.Connection, rows: Rows, job_id: int
) -> None:
    table = rows["buried_query"]
    none = (table["qualifying"] == 0) & (table["layer"] == 1)
    found = queries.abstaining_rows(analyst, job_id, 1, limit=1000)
    assert [row.most_heads for row in found] == sorted(table["most_heads"][none].tolist(), reverse=True)
    assert {row.layer for row in found} == {1}
    every = queries.abstaining_rows(analyst, job_id, None, limit=1000)
    assert len(every) == (table["qualifying"] == 0).sum() > len(found)


def test_the_page_shows_figures_ranking_and_the_first_example(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, rows: Rows, job_id: int
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(job_id))
    shown = {metric.label: metric.value for metric in app.metric}
    share = 100 * (rows["buried_query"]["qualifying"] > 0).mean()
    assert shown["Queries with a coalition"] == f"{share:.1f} %"
    assert shown["Qualifying keys"] == str(len(rows["buried_key"]["key"]))
    assert shown["Deepest rank"] == power_of_ten(float(np.log10(rows["buried_key"]["attention_rank_median"].max())))
    assert len(app.get("plotly_chart")) == 3
    keys = rows["buried_key"]
    best = int(np.argmax(keys["score"]))
    assert frame(app, "Ranks")["Score"].iloc[0] == pytest.approx(keys["score"][best])
    where = [int(keys[name][best]) for name in ("layer", "sequence", "query")]
    assert "Layer **{}**, sequence **{}**, query **{}**".format(*where) in texts(app)
    picks = rows["buried_pick"]
    mine = np.all([picks[name] == value for name, value in zip(("layer", "sequence", "query"), where, strict=True)], 0)
    table = frame(app, "Own top key")
    assert table["Position"].tolist() == picks["key"][mine & (picks["place"] == 1)].tolist()
    sign = keys["direction"][best] > 0
    agreeing = mine & (picks["key"] == keys["key"][best]) & ((picks["advantage"] > 0) == sign)
    heads = sorted(picks["head"][agreeing].tolist())
    assert len(heads) == keys["heads"][best]
    assert frame(app, "Agreeing heads")["Agreeing heads"].iloc[0] == ", ".join(map(str, heads))


def test_filters_and_the_example_are_in_the_address(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, rows: Rows, job_id: int
) -> None:
    app = opened(
        module_database, monkeypatch, jobs=str(job_id), layer="1", direction="less", rank="10", order="most buried"
    )
    keys = rows["buried_key"]
    wanted = (keys["layer"] == 1) & (keys["direction"] < 0) & (keys["attention_rank_smallest"] >= 10)
    assert len(frame(app, "Ranks")) == wanted.sum() > 0
    app.selectbox(key="layer_choice").set_value(0).run()
    assert app.query_params["layer"] == "0"
    app.text_input(key="token_field").set_value("nothing like it").run()
    assert app.query_params["token"] == "nothing like it"
    assert "No qualifying key is stored with these properties" in texts(app)
    assert not app.exception


def test_an_abstaining_query_is_said_to_abstain_and_its_heads_are_shown(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, rows: Rows, job_id: int
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(job_id), show="abstaining queries")
    assert "**The heads abstain**" in texts(app)
    assert f"and {coalition_rows.MIN_HEADS} would have to" in texts(app)
    table = rows["buried_query"]
    assert len(frame(app, "Most heads")) == min(50, (table["qualifying"] == 0).sum())
    assert len(frame(app, "Own top key")) == 4
    assert set(frame(app, "Own top key")["Agrees with others on"]) == {"–"}
    last = opened(module_database, monkeypatch, jobs=str(job_id), example="0,0,5,1")
    assert "**The heads abstain**" not in texts(last)  # no example: the first of the list


def test_text_of_the_corpus_is_never_read_as_html(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, rows: Rows, job_id: int
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(job_id), show="tokens", example="1,1,21")
    assert HOSTILE in frame(app, "Token")["Token"].tolist()
    boxes = "".join(element.proto.body for element in app.get("html"))
    assert html.escape(HOSTILE) in boxes
    assert HOSTILE not in boxes
    assert HOSTILE not in texts(app)


def test_a_job_without_coalitions_text_and_picks_is_shown_and_compared(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, job_id: int, bare_job_id: int
) -> None:
    app = opened(module_database, monkeypatch, jobs=f"{bare_job_id},{job_id}", rows=str(bare_job_id), example="1,0,21")
    table = app.dataframe[0].value
    assert table["Job"].tolist() == [bare_job_id, job_id]
    assert table["Qualifying keys"].tolist()[0] == "0"
    assert "No qualifying key is stored with these properties" in texts(app)
    assert "`picks=none`" in texts(app)
    app = opened(module_database, monkeypatch, jobs=str(bare_job_id), show="tokens", example="7,0,21")
    assert "did not measure layer 7" in app.warning[0].value
