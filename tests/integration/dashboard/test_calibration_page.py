"""The calibration page and its queries against NumPy over the same rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb
from streamlit.testing.v1 import AppTest

from dashboard.pages import RESULTS
from dashboard.queries import calibration as queries
from dashboard.queries.calibration import Order, RowOrder
from db import copy, partitions, summaries
from services.contracts.kinds import KINDS
from services.contracts.probes.calibration import CalibrationParameters
from services.contracts.probes.common import QueryRange
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import APP, texts
from tests.unit.workers.families import tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.models.others import OtherModels
from workers.probes import calibration

KIND = KINDS["calibration"]
SEQUENCES, LENGTH = 3, 19
HOSTILE = "<script>alert(1)</script>"
Rows = Mapping[str, Mapping[str, np.ndarray]]


def _words() -> list[list[str]]:
    """A word of its own for every position; token 3 of each sequence is hostile, and 6 a line break."""
    lines = [[f" w{sequence}.{position}" for position in range(LENGTH)] for sequence in range(SEQUENCES)]
    for line in lines:
        line[3], line[6] = HOSTILE, "\n"
    return lines


def _parameters() -> CalibrationParameters:
    return CalibrationParameters(
        sequences=SEQUENCES,
        length=LENGTH,
        batch=3,
        queries=QueryRange(start=2, step=1),
        sweeps_per_sequence=3,
        sweep_points=5,
    )


@pytest.fixture(scope="module")
def rows() -> Rows:
    ids = tokens(SEQUENCES, LENGTH).numpy().astype(np.int32)
    teacher = loaded(tiny("llama", seed=5))
    return calibration.measure(loaded(tiny("llama")), _parameters(), ids, 0, OtherModels([lambda: teacher])).rows


@pytest.fixture(scope="module")
def owner(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect() as conn:
        yield conn


@pytest.fixture(scope="module")
def analyst(module_database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with module_database.connect_analyst() as conn:
        yield conn


def _insert(conn: psycopg.Connection, rows: Rows, **job: Any) -> int:
    described = {"kind": KIND.name, "parameters": Jsonb(_parameters().model_dump()), "rows": 1} | job
    job_id = samples.insert_job(conn, "succeeded", **described)
    with conn.transaction():
        for table in KIND.tables:
            partitions.create(conn, table.name, job_id)
            copy.copy_rows(conn, table, job_id, rows[table.name])
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id


@pytest.fixture(scope="module")
def job_id(owner: psycopg.Connection, rows: Rows) -> int:
    return _insert(owner, rows, label="whole", dataset_id=samples.insert_dataset(owner, _words()))


@pytest.fixture(scope="module")
def bare_job_id(owner: psycopg.Connection, rows: Rows) -> int:
    """A job without text and without sweeps, whose rows are undefined."""
    table = {name: values.copy() for name, values in rows["calibration"].items()}
    table["r"][:] = np.nan
    none = {name: values[:0] for name, values in rows["transfer_sweep"].items()}
    return _insert(owner, {"calibration": table, "transfer_sweep": none}, label="bare")


def _opened(database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", database.analyst_url)
    app = AppTest.from_file(APP, default_timeout=60)
    app.query_params.update(query)
    app.switch_page(RESULTS["calibration"])
    app.run()
    assert not app.exception
    return app


def _frame(app: AppTest, column: str):
    return next(each.value for each in app.dataframe if column in each.value.columns)


def test_heads_have_their_quartiles_and_share(analyst: psycopg.Connection, rows: Rows, job_id: int) -> None:
    table = rows["calibration"]
    found = queries.heads(analyst, [job_id])
    assert [(row.layer, row.head) for row in found] == [(layer, head) for layer in range(2) for head in range(4)]
    for row in found:
        r = table["r"][(table["layer"] == row.layer) & (table["head"] == row.head)]
        assert row.n == len(r)
        assert (row.q25, row.median, row.q75) == pytest.approx(tuple(np.nanquantile(r, [0.25, 0.5, 0.75])))
        assert row.above == pytest.approx((r[~np.isnan(r)] > 1.5).mean())


@pytest.mark.parametrize(
    ("order", "column", "sign"),
    [("smallest r", "r", 1), ("largest r", "r", -1), ("strongest hard gradient", "hard_norm", -1)],
)
def test_rows_of_a_head_come_in_order_with_text_and_next_token(
    analyst: psycopg.Connection, rows: Rows, job_id: int, order: RowOrder, column: str, sign: int
) -> None:
    table, words = rows["calibration"], _words()
    mine = (table["layer"] == 1) & (table["head"] == 2) & ~np.isnan(table["r"])
    found = queries.head_rows(analyst, job_id, 1, 2, order, limit=5, before=3)
    assert [getattr(row, column) for row in found] == pytest.approx(sign * np.sort(sign * table[column][mine])[:5])
    for row in found:
        line = words[row.sequence]
        assert (row.token, row.next_token) == (line[row.query], line[row.query + 1])
        assert row.context == "".join(line[max(0, row.query - 3) : row.query])


def _sweeps(rows: Rows) -> list[dict[str, Any]]:
    """By NumPy: each sweep's key with what its losses change by."""
    table = {name: values.reshape(-1, 5) for name, values in rows["transfer_sweep"].items()}
    names = ("layer", "head", "sequence", "query", "first_key", "second_key", "r")
    return [
        {name: table[name][number, 0] for name in names}
        | {f"{loss}_change_nats": np.ptp(table[f"{loss}_loss_nats"][number]) for loss in ("hard", "soft")}
        | {name: table[name][number, 2] for name in ("hard_loss_nats", "soft_loss_nats", "first_weight")}
        for number in range(len(table["r"]))
    ]


@pytest.mark.parametrize("order", ["largest hard change", "smallest r", "largest soft change"])
def test_sweeps_are_reduced_ordered_and_filtered(
    analyst: psycopg.Connection, rows: Rows, job_id: int, order: Order
) -> None:
    column, sign = {"smallest r": ("r", 1)}.get(order, (order.split()[1] + "_change_nats", -1))
    expected = sorted(_sweeps(rows), key=lambda sweep: sign * sweep[column])
    found = queries.sweeps(analyst, [job_id], order, before=2)
    assert len(found) == len(expected) == SEQUENCES * 3
    words = _words()
    for sweep, other in zip(found, expected, strict=True):
        assert {name: getattr(sweep, name) for name in other} == pytest.approx(other)
        line = words[sweep.sequence]
        assert sweep.next_token == line[sweep.query + 1]
        for key, text in ((sweep.first_key, sweep.first_text), (sweep.second_key, sweep.second_text)):
            assert text == "".join(line[max(0, key - 2) : key + 1])
    middle = float(np.mean(sorted(sweep["r"] for sweep in expected)[4:6]))
    assert {s.place for s in queries.sweeps(analyst, [job_id], order, most=middle)} == {
        s.place for s in found if s.r <= middle
    }
    assert [s.place for s in queries.sweeps(analyst, [job_id], order, layer=1)] == [
        s.place for s in found if s.layer == 1
    ]


def test_one_sweep_has_its_points_in_order(analyst: psycopg.Connection, job_id: int) -> None:
    (sweep, *_) = queries.sweeps(analyst, [job_id], "smallest r")
    assert queries.one_sweep(analyst, sweep.place) == sweep
    assert queries.one_sweep(analyst, (*sweep.place[:-1], 18)) is None
    points = queries.points(analyst, sweep)
    assert [point.c for point in points] == [-3.0, -1.5, 0.0, 1.5, 3.0]
    assert points[2].hard_loss_nats == sweep.hard_loss_nats
    assert np.ptp([point.soft_loss_nats for point in points]) == sweep.soft_change_nats


def test_the_page_shows_figures_heads_sweeps_and_a_sweep_of_the_address(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, analyst: psycopg.Connection, rows: Rows, job_id
) -> None:
    chosen = queries.sweeps(analyst, [job_id], "smallest r")[2]
    place = ",".join(map(str, chosen.place))
    app = _opened(module_database, monkeypatch, jobs=str(job_id), layer="1", head="3", sweep=place)
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Median r"] == f"{np.nanmedian(rows['calibration']['r']):.2f}"
    assert shown["Rows"] == f"{len(rows['calibration']['r']):,}"
    assert "Layer 1, head 3" in [heading.value for heading in app.subheader]
    assert len(app.get("plotly_chart")) == 4
    assert f"query {chosen.query}: r = {chosen.r:.3f}" in texts(app)
    assert len(_frame(app, "First anchor")) == SEQUENCES * 3
    assert any("transfer_sweep_change" in code.value for code in app.code)
    assert HOSTILE not in "".join(element.proto.body for element in app.get("html"))
    app.selectbox(key="sweep_layer_choice").set_value("1").run()
    assert set(_frame(app, "First anchor")["Layer"]) <= {1}
    assert app.query_params["sweep_layer"] in ("1", ["1"])


def test_jobs_are_compared_and_one_without_text_sweeps_or_defined_rows_is_shown(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch, job_id: int, bare_job_id: int
) -> None:
    app = _opened(module_database, monkeypatch, jobs=f"{job_id},{bare_job_id}")
    table = _frame(app, "Median r")
    assert table["Job"].tolist() == [job_id, bare_job_id]
    assert table["Median r"].tolist()[1] == "–"
    alone = _opened(module_database, monkeypatch, jobs=str(bare_job_id), sweep=f"{bare_job_id},0,0,0,5,3,2")
    assert "No sweep is stored" in texts(alone)
    assert "has no such sweep" in texts(alone)
    assert "rows whose hard gradient is 0" in texts(alone)
