"""The attention-profile page and its queries against NumPy over the same rows."""

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.pages import RESULTS
from dashboard.queries import attention_profile as queries
from dashboard.views.attention_profile_metrics import METRICS
from services.contracts.probes.attention_profile import TABLE
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import profile_rows, samples
from tests.integration.dashboard.opened import APP, texts

WORDS = [[f" w{sequence}.{position}" for position in range(12)] for sequence in range(2)]


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
    """Two jobs; the second was given thresholds of its own."""
    dataset = samples.insert_dataset(owner, WORDS)
    parameters = profile_rows.KIND.parameters(local_threshold=0.5, entropy_threshold_nats=2.4).model_dump()
    first = profile_rows.insert(owner, profile_rows.columns(0), label="one", dataset_id=dataset)
    second = profile_rows.insert(owner, profile_rows.columns(1), label="two", parameters=Jsonb(parameters))
    return first, second


def opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["attention_profile"])
    app.run()
    assert not app.exception
    return app


def test_table_5_counts_heads_above_the_thresholds_of_each_job(
    analyst: psycopg.Connection, jobs: tuple[int, int]
) -> None:
    rows = analyst.execute("SELECT * FROM analysis.attention_profile_table_5 ORDER BY job_id").fetchall()
    for row, seed, (local, entropy) in zip(rows, (0, 1), ((0.7, 4.5), (0.5, 2.4)), strict=True):
        found = profile_rows.columns(seed)
        mean = {name: profile_rows.head_means(found, name) for name in ("entropy_nats", "top_weight", "local_mass")}
        counts = ((mean["local_mass"] > local).sum(), (mean["entropy_nats"] > entropy).sum())
        expected = [6, *(each.mean() for each in mean.values()), *counts, local, entropy]
        assert row[0] == jobs[seed] and row[1:] == pytest.approx(expected)
        asked = queries.table_5(analyst, [jobs[seed]], local=local, entropy=entropy)[0]
        assert (asked.heads_local, asked.heads_spread_out) == counts


def test_heads_have_the_means_of_their_queries_and_of_their_random_sequences(
    analyst: psycopg.Connection, jobs: tuple[int, int]
) -> None:
    found = profile_rows.columns(0)
    rows = queries.heads(analyst, [jobs[0]])
    assert [(row.layer, row.head) for row in rows] == [(layer, head) for layer in range(3) for head in range(2)]
    for name in METRICS:
        expected = profile_rows.head_means(found, name).ravel()
        assert [getattr(row, name) for row in rows] == pytest.approx(expected.tolist()), name


@pytest.mark.parametrize("order", ["lowest entropy", "largest weight far away"])
def test_queries_of_a_head_come_in_order_with_the_text_of_their_key(
    analyst: psycopg.Connection, jobs: tuple[int, int], order: queries.Order
) -> None:
    rows = queries.head_rows(analyst, jobs[0], 1, 1, order, limit=4, before=2, around=1)
    found = profile_rows.columns(0)[TABLE.name]
    wanted = (found["layer"] == 1) & (found["head"] == 1)
    if order == "lowest entropy":
        key = found["entropy_nats"]
    else:
        key, wanted = -found["top_weight"], wanted & (found["top_key"] > 0) & (found["query"] - found["top_key"] > 7)
    places = np.flatnonzero(wanted)[np.argsort(key[wanted])][:4]
    assert [(row.sequence, row.query) for row in rows] == [(found["sequence"][i], found["query"][i]) for i in places]
    for row in rows:
        words = WORDS[row.sequence]
        assert row.before == "".join(words[row.query - 2 : row.query])
        assert (row.token, row.top_token) == (words[row.query], words[row.top_key])
        assert row.top_before == words[row.top_key - 1] and row.top_after == words[row.top_key + 1]


def test_the_page_shows_table_5_beside_the_article_and_moves_its_thresholds(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), layer="1", head="1", metric="entropy_nats")
    table = app.dataframe[0].value
    assert table["Job"].tolist() == [f"Job {jobs[0]}", "Article: control", "Article: NATQ"]
    article = ["3.75", "0.238", "0.383", "8 of 72 (11.1 %)", "7 of 72 (9.7 %)", "–"]
    assert table.iloc[1].tolist() == ["Article: control", *article]
    mean = profile_rows.head_means(profile_rows.columns(0), "entropy_nats")
    above = {limit: (mean > limit).sum() for limit in (4.5, 2.25)}
    assert above[2.25] != above[4.5]
    assert table.loc[0, "Mean entropy (nats)"] == f"{mean.mean():.2f}"
    assert table.loc[0, "Spread-out heads"] == f"{above[4.5]} of 6 ({100 * above[4.5] / 6:.1f} %)"
    assert table.loc[0, "Keys in a row"] == "33 to 1,021"  # queries 32, 36, … 1020
    assert len(app.get("plotly_chart")) == 3
    assert "Layer 1, head 1" in [heading.value for heading in app.subheader]
    rows = app.dataframe[3].value
    assert rows["Entropy"].is_monotonic_increasing and rows["Key's text"].str.contains(r"⟦ w\d\.\d+⟧").all()
    app.number_input(key="entropy_choice").set_value(2.25).run()
    table = app.dataframe[0].value
    assert table.loc[0, "Spread-out heads"] == f"{above[2.25]} of 6 ({100 * above[2.25] / 6:.1f} %)"
    assert table.loc[2, ["Local heads", "Spread-out heads"]].tolist() == ["1 of 72 (1.4 %)", "–"]
    assert app.query_params["entropy"] == "2.25"


def test_the_table_of_heads_is_filtered_and_sorted_and_the_address_keeps_it(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mean = profile_rows.head_means(profile_rows.columns(0), "induction_score")
    query = {"where": "induction_score", "side": "at least", "limit": str(np.median(mean)), "metric": "induction_score"}
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), **query)
    shown = app.dataframe[1].value
    assert shown["induction_score"].tolist() == pytest.approx(sorted(mean[mean >= np.median(mean)], reverse=True))
    assert "3 of 6 heads" in texts(app)
    app.multiselect(key="layers_choice").set_value([2]).run()
    assert set(app.dataframe[1].value["layer"]) <= {2}
    assert app.query_params["layers"] == "2"
    # without an address of its own the head with the largest value is shown
    layer, head = np.unravel_index(mean.argmax(), mean.shape)
    assert f"Layer {layer}, head {head}" in [heading.value for heading in app.subheader]


def test_two_jobs_have_a_map_of_their_difference(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = opened(module_database, monkeypatch, jobs=f"{jobs[0]},{jobs[1]}", metric="sink_mass")
    assert len(app.get("plotly_chart")) == 4
    table = app.dataframe[0].value
    assert table["Job"].tolist()[:2] == [f"Job {job}" for job in jobs]
    assert table["Label"].tolist() == ["one", "two", "–", "–"]  # what differs stands beside the statistics, not above
    assert f"Difference: job {jobs[1]} minus job {jobs[0]}" in texts(app)
    one, two = (profile_rows.head_means(profile_rows.columns(seed), "sink_mass") for seed in (0, 1))
    statement = next(code.value for code in app.code if "AS difference" in code.value)
    with module_database.connect_analyst() as conn:
        found = [row[2] for row in conn.execute(statement.encode()).fetchall()]
    assert found == pytest.approx((two - one).ravel().tolist())


def test_the_address_names_jobs_as_job_or_jobs_or_both(
    module_database: MigratedDatabase, jobs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = jobs
    for address, shown in [
        ({"job": str(first)}, [first]),
        ({"jobs": str(second), "job": str(first)}, [second, first]),
        ({"job": "x"}, [second]),  # no job: the newest
    ]:
        app = opened(module_database, monkeypatch, **address)
        assert app.multiselect(key="jobs_choice").value == shown
        assert "job" not in app.query_params
    app = opened(module_database, monkeypatch, job=str(first), jobs=str(second))
    app.multiselect(key="jobs_choice").set_value([second]).run()
    assert app.multiselect(key="jobs_choice").value == [second]  # what came as ``job`` can be taken away
    assert "Without results of this kind, and left out: job 999" in texts(
        opened(module_database, monkeypatch, job="999", jobs=str(first))
    )


def test_learned_sinks_are_shown_only_where_some_head_has_one(
    owner: psycopg.Connection,
    module_database: MigratedDatabase,
    jobs: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = opened(module_database, monkeypatch, jobs=str(jobs[0]), metric="no_key_mass")
    assert "learned sink" in app.dataframe[2].value["Metric"].tolist()
    assert "weight that a learned sink takes" in texts(app)
    without = profile_rows.columns(2)
    without[TABLE.name]["no_key_mass"][:] = 0
    job = profile_rows.insert(owner, without)
    app = opened(module_database, monkeypatch, jobs=str(job), metric="no_key_mass", where="no_key_mass")
    assert "learned sink" not in app.dataframe[2].value["Metric"].tolist()
    assert "weight that a learned sink takes" not in texts(app)  # the first metric is shown instead
    assert "6 of 6 heads" in texts(app)
