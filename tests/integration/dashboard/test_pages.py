"""Every page run against a real database, as a viewer would see it."""

from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import SecretStr
from streamlit.testing.v1 import AppTest

from dashboard.pages import ALERTS, CHECKPOINTS, JOBS, MENU, NATQ_TRAINING, PLAYGROUND, RESULTS, SUITES, SWEEPS
from db.repositories import api_tokens
from services.contracts.kinds import KINDS
from services.contracts.settings import Settings
from services.contracts.states import JobState, Scope
from tests.conftest import MigratedDatabase
from tests.integration.api.conftest import served
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import APP, Open, texts

HOSTILE = "*bold* [link](http://x) <script>alert(1)</script> :red[r] $m$"


def test_every_kind_has_a_result_page() -> None:
    assert set(RESULTS) == set(KINDS)
    assert all((APP.parent / path).is_file() for path in RESULTS.values())


def test_every_page_is_in_the_menu_once() -> None:
    listed = sorted(path for paths in MENU.values() for path in paths)
    assert listed == sorted([JOBS, SUITES, PLAYGROUND, CHECKPOINTS, NATQ_TRAINING, SWEEPS, ALERTS, *RESULTS.values()])


def test_an_empty_database_says_how_to_submit_the_first_job(open_page: Open) -> None:
    for kind, page in {"gradient_scale": "views/jobs.py"}.items() | RESULTS.items():
        app = open_page(page)
        assert any(f"keyhole submit {kind} --model" in code.value for code in app.code)


def test_the_list_shows_jobs_newest_first_and_filters_them(open_page: Open, owner: psycopg.Connection) -> None:
    failed = samples.insert_job(owner, "failed", label=HOSTILE)
    running = samples.insert_job(owner, "running", shards_done=2)
    frame = open_page().dataframe[0].value
    assert frame["job"].tolist() == [running, failed]
    assert frame["progress"].tolist() == [25.0, 0.0]
    shown = frame["label"].tolist()
    assert shown[0] == "" and HOSTILE.startswith(shown[1].split("…")[0]) and HOSTILE.endswith(shown[1].split("…")[1])
    app = open_page()
    app.selectbox(key="state").set_value("failed").run()
    assert app.dataframe[0].value["job"].tolist() == [failed]
    app.text_input(key="text").set_value("nothing like it").run()
    assert "No job matches" in texts(app)


def test_the_list_goes_to_older_and_back_to_newer_jobs(open_page: Open, owner: psycopg.Connection) -> None:
    made = [samples.insert_job(owner) for _ in range(30)]
    app = open_page()
    assert app.dataframe[0].value["job"].tolist() == made[:4:-1]
    button(app, "Older").click().run()
    assert app.dataframe[0].value["job"].tolist() == made[4::-1]
    button(app, "Newer").click().run()
    assert app.dataframe[0].value["job"].tolist() == made[:4:-1]


def test_a_failed_job_shows_error_hint_traceback_and_retry(open_page: Open, owner: psycopg.Connection) -> None:
    job_id = samples.insert_job(
        owner,
        "failed",
        label=HOSTILE,
        error_code="out_of_memory",
        error_message="No memory for <b>batch</b> 16.",
        error_hint="Lower `batch`.",
        error_traceback='Traceback (most recent call last):\n  File "x.py"',
    )
    samples.insert_attempt(owner, job_id, 1, ended_at=samples.START, outcome="failed")
    samples.insert_event(owner, job_id, 94, "failed")
    app = open_page(job=str(job_id))
    assert app.title[0].value == f"Job {job_id}"
    assert r"out\_of\_memory" in app.error[0].value
    assert r"\<b\>batch\</b\>" in app.error[0].value
    assert "Lower `batch`" in app.error[0].value
    assert any("Traceback (most recent call last)" in code.value for code in app.code)
    assert button(app, f"Retry job {job_id}").disabled  # until a token is given
    assert r"\*bold\* \[link\]\(http\://x\) \<script\>" in texts(app)


def test_a_running_job_shows_rate_and_time_left(open_page: Open, owner: psycopg.Connection) -> None:
    job_id = samples.insert_job(owner, "running", shards_done=4, rows=4000)
    owner.execute("UPDATE keyhole.job SET created_at = now() - interval '50 s', started_at = now() - interval '45 s'")
    for done, ago in [(1, 40), (4, 10)]:
        owner.execute(
            "INSERT INTO keyhole.job_event (job_id, at, type, data) VALUES "
            "(%s, now() - %s * interval '1 s', 'progress', jsonb_build_object('shards_done', %s::int))",
            (job_id, ago, done),
        )
    app = open_page(job=str(job_id))
    line = app.get("progress")[0].proto.text
    assert "4 of 8 shards · 4,000 rows" in line
    assert "rows/s" in line and "left" in line
    assert button(app, f"Cancel job {job_id}").disabled


def test_an_unknown_job_is_named(open_page: Open) -> None:
    assert "There is no job 12345." in texts(open_page(job="12345"))


def test_an_api_that_does_not_answer_is_reported_and_the_token_stays_out_of_the_address(
    open_page: Open, owner: psycopg.Connection
) -> None:
    job_id = samples.insert_job(owner, "queued")
    app = open_page(job=str(job_id))
    app.text_input(key="api_token").set_value("kh_secret").run()
    button(app, f"Cancel job {job_id}").click().run()
    assert "does not answer" in app.error[0].value
    assert "kh_secret" not in str(dict(app.query_params)) + texts(app)


def test_cancel_and_retry_go_through_the_api_with_the_scope_of_the_token(
    open_page: Open, owner: psycopg.Connection, database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = samples.insert_job(owner, "queued")
    tokens = {scope: api_tokens.create(owner, f"viewer-{scope}", scope)[1] for scope in (Scope.READ, Scope.SUBMIT)}
    app = open_page(job=str(job_id))
    with served(Settings(database_url=SecretStr(database.owner_url), broker_url=None)) as api_url:
        monkeypatch.setenv("KEYHOLE_API_URL", api_url)
        app.text_input(key="api_token").set_value(tokens[Scope.READ]).run()
        button(app, f"Cancel job {job_id}").click().run()
        assert "scope" in app.error[0].value
        assert state(owner, job_id) == "queued"

        app.text_input(key="api_token").set_value(f" {tokens[Scope.SUBMIT]} ").run()
        button(app, f"Cancel job {job_id}").click().run()
        assert state(owner, job_id) == "cancelled"
        button(app, f"Retry job {job_id}").click().run()
        assert state(owner, job_id) == "queued"
    assert not app.exception


def state(conn: psycopg.Connection, job_id: int) -> str:
    row = conn.execute("SELECT state FROM keyhole.job WHERE id = %s", (job_id,)).fetchone()
    assert row is not None
    return row[0]


def test_a_result_shows_figures_table_rows_and_sql(open_page: Open, owner: psycopg.Connection) -> None:
    columns = samples.gradient_scale_columns(3, 2, 4, [3, 5, 7])
    job_id = samples.insert_result(owner, columns, label=HOSTILE)
    app = open_page(RESULTS["gradient_scale"], jobs=str(job_id), layer="1", head="1")
    share = 100 * (columns["log10_d_a"] > columns["log10_d_c"]).mean()
    assert {metric.label: metric.value for metric in app.metric}[r"Queries with D\_a \> D\_c"] == f"{share:.1f} %"
    assert "Layer 1, head 1" in [heading.value for heading in app.subheader]
    assert len(app.get("plotly_chart")) == 4
    assert any(f"ARRAY[{job_id}]" in code.value for code in app.code)
    assert len([each for each in app.get("download_button") if each.proto.label == "CSV"]) == 5
    app.selectbox(key="layer_choice").set_value(2).run()
    assert "Layer 2, head 1" in [heading.value for heading in app.subheader]
    assert app.query_params["layer"] == "2"


def test_jobs_are_compared_side_by_side_and_unknown_ones_left_out(open_page: Open, owner: psycopg.Connection) -> None:
    first = samples.insert_result(owner, samples.gradient_scale_columns(2, 2, 2, [3, 5]), label="first")
    second = samples.insert_result(owner, samples.gradient_scale_columns(3, 1, 2, [3, 5]), label="second")
    app = open_page(RESULTS["gradient_scale"], jobs=f"{first},{second},999")
    assert "job 999" in app.warning[0].value
    assert app.multiselect(key="jobs_choice").value == [first, second]
    table = app.dataframe[0].value
    assert table["Job"].tolist() == [first, second]
    assert table["Label"].tolist() == ["first", "second"]


def test_local_sources_in_the_list_are_told_apart_by_their_ends(open_page: Open, owner: psycopg.Connection) -> None:
    for name in ("tinyllama", "tinyqwen2"):
        samples.insert_job(
            owner,
            model_source=f"path:/tmp/newuser/home/models/{name}",
            dataset_source=f"tokens:/tmp/newuser/home/data/{name}.npy",
        )
    frame = open_page().dataframe[0].value
    assert [shown[-9:] for shown in frame["model"]] == ["tinyqwen2", "tinyllama"]
    assert [shown[-8:] for shown in frame["dataset"]] == ["wen2.npy", "lama.npy"]
    assert all(shown.startswith("path:") for shown in frame["model"])


def test_the_picker_and_the_table_show_what_the_jobs_were_asked_for(open_page: Open, owner: psycopg.Connection) -> None:
    columns = samples.gradient_scale_columns(2, 2, 2, [3, 5])
    jobs = []
    for credit in ("sequence", "own_token"):
        parameters = samples.KIND.parameters(credit=credit, length=64, sequences=2)
        jobs.append(samples.insert_result(owner, columns, parameters=Jsonb(parameters.model_dump())))
    app = open_page(RESULTS["gradient_scale"], jobs=f"{jobs[0]},{jobs[1]}")
    picker = app.multiselect(key="jobs_choice")
    assert len(set(picker.options)) == 2
    for option, credit in zip(picker.options, ("own_token", "sequence"), strict=True):
        assert f"credit {credit} · float32 · 2 sequences · length 64" in option
    table = app.dataframe[0].value
    assert table["Credit"].tolist() == ["credit sequence", "credit own_token"]
    assert not {"Model", "Data set", "Length", "Label"} & set(table.columns)


def test_times_after_a_retry_leave_out_the_time_before_it(open_page: Open, owner: psycopg.Connection) -> None:
    job_id = samples.insert_job(
        owner,
        "succeeded",
        started_at=samples.START + timedelta(seconds=502),
        finished_at=samples.START + timedelta(seconds=900),
    )
    first = [(0, "queued"), (4, "running"), (5, "loading model"), (15, "reading data"), (18, "failed")]
    again = [(500, "queued"), (502, "running"), (503, "loading model"), (513, "reading data"), (515, "measuring")]
    for seconds, name in first + again:
        if name in list(JobState):
            samples.insert_event(owner, job_id, seconds, name)
        else:
            samples.insert_event(owner, job_id, seconds, "phase", phase=name)
    for done in range(250):  # more than the history shows
        samples.insert_event(owner, job_id, 516 + done, "progress", shards_done=done)
    samples.insert_event(owner, job_id, 900, "succeeded")
    app = open_page(job=str(job_id))
    assert "queued 6 s → starting 2 s → loading model 20 s → reading data 5 s → measuring 6 min 25 s" in texts(app)
    shown = {metric.label: metric.value for metric in app.metric}
    assert (shown["Waited"], shown["Duration"]) == ("6 s", "6 min 38 s")
    assert "The latest 200 events." in texts(app)
    assert "Submitted 2026-09-04 12:00:00 UTC" in texts(app)


def test_a_job_of_infinite_and_undefined_values_is_shown_and_counted(
    open_page: Open, owner: psycopg.Connection
) -> None:
    columns = samples.gradient_scale_columns(2, 1, 2, [3, 5])
    columns["log10_d_a"][:] = float("inf")
    columns["log10_d_c"][:] = float("nan")
    job_id = samples.insert_result(owner, columns)
    app = open_page(RESULTS["gradient_scale"], jobs=str(job_id))
    assert {metric.label: metric.value for metric in app.metric}[r"Median D\_a"] == "∞"
    assert "8 are infinite" in texts(app) and "8 are undefined" in texts(app)


def test_a_database_that_does_not_answer_is_a_sentence_not_a_traceback(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_ANALYST_URL", "postgresql://analyst@127.0.0.1:9/keyhole")
    for page in ("views/jobs.py", CHECKPOINTS, NATQ_TRAINING, SWEEPS, ALERTS, *RESULTS.values()):
        app = open_page(page)
        assert "The database does not answer" in app.error[0].value
        assert button(app, "Try again now")
    monkeypatch.delenv("KEYHOLE_ANALYST_URL")
    assert "KEYHOLE\\_ANALYST\\_URL" in open_page().error[0].value


def test_connections_that_are_all_in_use_are_not_called_a_database_that_is_down(
    open_page: Open, database: MigratedDatabase
) -> None:
    held: list[psycopg.Connection] = []
    try:
        with pytest.raises(psycopg.OperationalError, match="too many connections"):
            for _ in range(100):
                held.append(database.connect_analyst())
        app = open_page()
    finally:
        for conn in held:
            conn.close()
    assert "All connections of the role analyst are in use" in app.error[0].value
    assert button(app, "Try again now")


def button(app: AppTest, label: str):
    return next(each for each in app.button if each.label == label)
