"""The page of suites: the list, one suite, and the links to its results."""

import json

import psycopg
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.pages import SUITES
from db.repositories import suite_stages, suites
from tests.integration.dashboard import samples
from tests.integration.dashboard.opened import Open, texts
from tests.integration.db import example_runs


def insert_suite(conn: psycopg.Connection, name: str) -> tuple[int, list[int]]:
    job_ids = [
        samples.insert_job(conn, "succeeded"),
        samples.insert_job(conn, "cancelled"),
        samples.insert_job(conn, "running"),
        samples.insert_job(conn, "failed", error_code="out_of_memory", error_message="No *memory* is left"),
    ]
    suite_id = suites.insert(conn, name, None)
    for position, job_id in enumerate(job_ids):
        suites.add(conn, suite_id, position, job_id, reused=position == 0)
    return suite_id, job_ids


def test_without_suites_the_page_says_how_to_submit_one(open_page: Open) -> None:
    assert "keyhole submit suite" in texts(open_page(SUITES))


def test_suites_are_listed_and_found_by_name(owner: psycopg.Connection, open_page: Open) -> None:
    first, _ = insert_suite(owner, "pythia over steps")
    insert_suite(owner, "another")
    listed = open_page(SUITES, text="PYTHIA").dataframe[0].value
    assert list(listed["Suite"]) == [first]
    states = ("Jobs", "Succeeded", "Failed", "Cancelled")
    assert tuple(listed[state][0] for state in states) == (4, 1, 1, 1)
    assert "No suite has that in its name" in texts(open_page(SUITES, text="mamba"))


def test_a_suite_shows_its_jobs_their_errors_and_results(owner: psycopg.Connection, open_page: Open) -> None:
    suite_id, job_ids = insert_suite(owner, "tour")
    app = open_page(SUITES, suite=str(suite_id))
    members = app.dataframe[0].value
    assert list(members["Job"]) == job_ids
    assert list(members["Stood before"]) == [True, False, False, False]
    assert "1 succeeded" in texts(app)
    assert r"No \*memory\* is left" in texts(app)


def test_a_suite_that_is_not_there_is_no_error(open_page: Open) -> None:
    assert "There is no suite 999" in texts(open_page(SUITES, suite="999"))


def test_a_suite_in_stages_shows_what_comes_and_why_a_stage_was_skipped(
    owner: psycopg.Connection, open_page: Open
) -> None:
    suite_id, (first, *_) = insert_suite(owner, "in stages")
    suites.add(owner, suite_id, 9, samples.insert_job(owner, "succeeded"), reused=False, stage=1)
    for number, models in enumerate((["runs@last"], ["runs"], ["path:a"]), start=1):
        body = {"models": models, "probes": [{"kind": "attention_profile"}]}
        suite_stages.insert(owner, suite_id, number, body)
    suite_stages.set_submitted(owner, suite_id, 1)
    suite_stages.skip(owner, suite_id, 2, f"job {first} (training) *failed*")
    app = open_page(SUITES, suite=str(suite_id))
    members, stages = (table.value for table in app.dataframe[:2])
    assert list(members["Stage"]) == [0, 0, 0, 0, 1]
    assert [state for (state,) in stages["State"]] == ["submitted", "skipped", "waiting"]
    assert list(stages["Models"]) == ["runs@last", "runs", "path:a"]
    told = texts(app).replace("\\", "")  # brackets and stars are escaped
    assert f"Stage 2 was skipped: job {first} (training) *failed*" in told
    assert list(open_page(SUITES, text="in stages").dataframe[0].value["Stages to come"]) == [1]


def test_a_suite_of_several_widths_shows_how_norms_grow_with_width(owner: psycopg.Connection, open_page: Open) -> None:
    suite_id = example_runs.insert_ladder(owner)
    app = open_page(SUITES, suite=str(suite_id))
    assert "Growth with width" in [each.value for each in app.subheader]
    stored = owner.execute(
        "SELECT matrix, step, update_exponent FROM analysis.width_growth "
        "WHERE suite_id = %s AND update_exponent IS NOT NULL",
        (suite_id,),
    ).fetchall()
    assert stored
    assert drawn(app) == {(matrix, step): pytest.approx(value) for matrix, step, value in stored}
    app.selectbox(key="norm_choice").set_value("weight").run()
    assert {step for _, step in drawn(app)} > {step for _, step, _ in stored}, "weights have a norm at step 0 too"
    assert app.query_params["norm"] == "weight"


def drawn(app: AppTest) -> dict[tuple[str, int], float]:
    """Points of the chart of growth by matrix and step."""
    (chart,) = app.get("plotly_chart")
    lines = [trace for trace in json.loads(chart.proto.spec)["data"] if trace.get("name")]
    return {(trace["name"], step): value for trace in lines for step, value in zip(trace["x"], trace["y"], strict=True)}


def test_a_suite_of_one_width_has_no_such_section(owner: psycopg.Connection, open_page: Open) -> None:
    suite_id, _ = insert_suite(owner, "one width")
    assert "Growth with width" not in [each.value for each in open_page(SUITES, suite=str(suite_id)).subheader]
