"""The shared-routing page and its queries against NumPy over the same rows."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.charts.extra_loss import signed
from dashboard.formats import NOTHING
from dashboard.pages import RESULTS
from dashboard.queries import shared_routing as queries
from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import APP, texts

KIND = KINDS["shared_routing"]
SEQUENCES, POSITIONS = 3, 9
HOSTILE = "<img src=x onerror=alert(1)>"
WORDS = [
    [HOSTILE if position % 4 == 3 else f" w{sequence}.{position}" for position in range(POSITIONS)]
    for sequence in range(SEQUENCES)
]


def _columns(layers: list[int], seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Large extra losses in the first layer, small ones of either sign in the others."""
    rng = np.random.default_rng(seed)
    layer, sequence, query = (
        axis.ravel() for axis in np.meshgrid(layers, range(SEQUENCES), range(POSITIONS - 1), indexing="ij")
    )
    extra = np.where(layer <= 0, rng.normal(4.5, 1, len(layer)), rng.normal(0, 0.02, len(layer))).astype(np.float32)
    unmodified = rng.uniform(1, 4, len(extra)).astype(np.float32)
    once = layer == layers[0]
    return {
        "shared_routing": {
            "layer": layer.astype(np.int16),
            "sequence": sequence.astype(np.int32),
            "query": query.astype(np.int32),
            "loss_nats": unmodified + extra,
            "extra_loss_nats": extra,
        },
        "shared_routing_unmodified": {
            "sequence": sequence[once].astype(np.int32),
            "query": query[once].astype(np.int32),
            "loss_nats": unmodified[once],
        },
    }


def _insert(conn: psycopg.Connection, columns: dict[str, dict[str, np.ndarray]], **job) -> int:
    job.setdefault("parameters", Jsonb(KIND.parameters().model_dump()))
    job_id = samples.insert_job(conn, "succeeded", kind=KIND.name, version=KIND.version, **job)
    with conn.transaction():
        for table in KIND.tables:
            partitions.create(conn, table.name, job_id)
            copy.copy_rows(conn, table, job_id, columns[table.name])
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def jobs(owner: psycopg.Connection) -> tuple[int, int, int]:
    """Shared softmax of the article's model, shared sigmoid of another one, and all layers at once."""
    dataset = samples.insert_dataset(owner, WORDS)
    asked = [{}, {"routing": "shared_sigmoid", "bias": -3.0}, {"together": True}]
    return tuple(  # type: ignore[return-value]  # there are three
        _insert(
            owner,
            _columns([-1] if number == 2 else [0, 1, 2], number),
            dataset_id=dataset,
            model_source="hf:Qwen/Qwen2.5-1.5B@abc" if number == 0 else "builtin:smollm2-135m-instruct",
            parameters=Jsonb(KIND.parameters(**parameters).model_dump()),
        )
        for number, parameters in enumerate(asked)
    )


@pytest.fixture
def open_page(module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    def opened(**query: str) -> AppTest:
        monkeypatch.setenv("KEYHOLE_ANALYST_URL", module_database.analyst_url)
        app = AppTest.from_file(APP, default_timeout=60)
        app.query_params.update(query)
        app.switch_page(RESULTS[KIND.name])
        app.run()
        assert not app.exception
        return app

    return opened


def _table(app: AppTest) -> str:
    (table,) = [each.proto.body for each in app.get("html") if "<table" in each.proto.body]
    return table


def test_key_figures_and_the_layer_table_are_those_of_the_rows(open_page, jobs: tuple[int, int, int]) -> None:
    app = open_page(jobs=str(jobs[0]))
    rows = _columns([0, 1, 2], 0)["shared_routing"]
    extra = rows["extra_loss_nats"].reshape(3, -1)
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Largest median"] == f"{signed(float(np.median(extra[0])))}, layer 0"
    assert figures["Other medians"] == f"≤ {signed(float(np.median(extra[1:], axis=1).max()))}"
    assert figures["Largest extra loss"] == signed(float(extra.max()))
    table = app.dataframe[0].value
    assert table["Layer"].tolist() == ["0", "1", "2"]
    assert table["99 %"].tolist() == [signed(float(np.quantile(each.astype(float), 0.99))) for each in extra]
    assert "Pink: the article's figures" in texts(app)


def test_tokens_are_the_worst_of_the_chosen_layer_with_their_text(open_page, jobs: tuple[int, int, int]) -> None:
    app = open_page(jobs=str(jobs[0]), layer="2")
    rows = _columns([0, 1, 2], 0)["shared_routing"]
    here = np.flatnonzero(rows["layer"] == 2)
    worst = here[np.argmax(rows["extra_loss_nats"][here])]
    sequence, query = rows["sequence"][worst], rows["query"][worst]
    first = re.findall("<tr>.*?</tr>", _table(app))[1]
    assert f">{sequence}</td>" in first and f">{query + 1}</td>" in first
    assert signed(float(rows["extra_loss_nats"][worst])) in first
    app.segmented_control(key="order_choice").set_value("loss lowered most").run()
    least = here[np.argmin(rows["extra_loss_nats"][here])]
    assert signed(float(rows["extra_loss_nats"][least])) in re.findall("<tr>.*?</tr>", _table(app))[1]
    assert app.query_params["order"] == "loss lowered most"
    app.selectbox(key="layer_choice").set_value("1").run()
    assert "Layer 1" in [heading.value for heading in app.subheader]


def test_text_is_escaped_and_the_target_in_bold(open_page, jobs: tuple[int, int, int]) -> None:
    table = _table(open_page(jobs=str(jobs[0]), layer="0"))
    assert HOSTILE not in table and "&lt;img src=x onerror=alert(1)&gt;" in table
    targets = re.findall("<b [^>]*>(.*?)</b>", table)
    assert len(targets) == 20 and " w0.1" in targets


def test_a_query_gives_the_target_and_the_text_on_both_sides(
    module_database: MigratedDatabase, jobs: tuple[int, int, int]
) -> None:
    with module_database.connect_analyst() as conn:
        found = queries.tokens(conn, jobs[0], 0, "loss raised most", limit=100, before=2, after=1)
    assert len(found) == SEQUENCES * (POSITIONS - 1)
    for token in found:
        words, place = WORDS[token.sequence], token.query + 1
        assert token.target == words[place]
        assert token.before == "".join(words[max(place - 2, 0) : place])
        assert (token.after or "") == "".join(words[place + 1 : place + 2])


def test_routings_are_compared_side_by_side(open_page, jobs: tuple[int, int, int]) -> None:
    app = open_page(jobs=",".join(map(str, jobs)), layer="all at once")
    table = app.dataframe[0].value
    assert table["Job"].tolist() == list(jobs)
    assert table["Routing"].tolist() == ["routing shared_softmax", "routing shared_sigmoid", "routing shared_softmax"]
    assert table["Largest median"][2].endswith("all layers at once")
    assert table["Bias"].tolist() == [NOTHING, "bias -3.0", NOTHING]  # a softmax has none
    assert "for a shared softmax of one layer at a time, the first layer's median is +4.76" in texts(app)
    assert "All layers at once" in [heading.value for heading in app.subheader]
    assert app.dataframe[1].value["Layer"].tolist() == ["0", "1", "2", "0", "1", "2", "all at once"]
    assert _table(app).count("<tr>") == 21


def test_the_articles_medians_do_not_stand_beside_another_routing(open_page, jobs: tuple[int, int, int]) -> None:
    assert "the first layer's median is +4.76" in texts(open_page(jobs=str(jobs[0])))
    assert "+4.76" not in texts(open_page(jobs=str(jobs[1])))
