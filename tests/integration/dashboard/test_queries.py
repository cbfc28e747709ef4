"""The dashboard's SQL as the analyst role, compared with NumPy over the same rows."""

from collections.abc import Iterator
from typing import get_args

import numpy as np
import psycopg
import pytest

from dashboard.queries import gradient_scale as head_queries
from dashboard.queries import jobs as job_queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.gradient_scale import Order
from dashboard.queries.jobs import Filters
from dashboard.queries.text import as_text
from tests.conftest import MigratedDatabase
from tests.integration.dashboard import samples

QUERIES = [3, 5, 7]


@pytest.fixture
def owner(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with database.connect() as conn:
        yield conn


@pytest.fixture
def analyst(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    with database.connect_analyst() as conn:
        yield conn


def test_pages_follow_one_another_without_gap_or_overlap(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    made = [samples.insert_job(owner) for _ in range(7)]
    seen: list[int] = []
    before = None
    while True:
        page = job_queries.job_page(analyst, Filters(), before=before, limit=3)
        seen += [line.job_id for line in page.lines]
        if not page.older:
            break
        before = page.lines[-1].job_id
    assert seen == sorted(made, reverse=True)
    newer = job_queries.job_page(analyst, Filters(), after=seen[-1], limit=3)
    assert [line.job_id for line in newer.lines] == seen[-4:-1]
    assert newer.newer and newer.older


def test_filters_select_by_state_model_number_and_text(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    failed = samples.insert_job(owner, "failed", label="100%_sure")
    other = samples.insert_job(owner, "succeeded", model_source="hf:a/b@c", label="100 other")

    def found(**filters: str) -> list[int]:
        return [line.job_id for line in job_queries.job_page(analyst, Filters(**filters)).lines]

    assert found(state="failed") == [failed]
    assert found(model="hf:a/b@c") == [other]
    assert found(text=f"#{other}") == [other]
    assert found(text="0%_S") == [failed]  # wildcards are plain signs, case does not matter
    assert found(text="HF:A/B") == [other]
    assert found(kind="no such kind") == []


def test_filters_out_of_an_address_may_have_nul_characters(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    job_id = samples.insert_job(owner, label="night run")
    assert [line.job_id for line in job_queries.job_page(analyst, Filters(text="\0night\0 run")).lines] == [job_id]
    assert [line.job_id for line in job_queries.job_page(analyst, Filters(text="\0")).lines] == [job_id]
    for filters in (Filters(kind="a\0"), Filters(state="a\0"), Filters(model="a\0")):
        assert job_queries.job_page(analyst, filters).lines == []


def test_counts_models_and_finished_jobs(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    samples.insert_job(owner, "queued", model_source="hf:b/b")
    done = [samples.insert_job(owner, "succeeded", model_source="hf:a/a") for _ in range(2)]
    assert job_queries.state_counts(analyst) == {"queued": 1, "succeeded": 2}
    assert job_queries.models(analyst) == ["hf:a/a", "hf:b/b"]
    assert [line.job_id for line in job_queries.finished_jobs(analyst, "gradient_scale")] == done[::-1]


def test_a_job_comes_with_its_attempts_and_history(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    job_id = samples.insert_job(owner, "failed", error_code="out_of_memory", error_traceback="Traceback …")
    samples.insert_attempt(owner, job_id, 1, ended_at=samples.START, outcome="lost")
    samples.insert_attempt(owner, job_id, 2)
    samples.insert_event(owner, job_id, 1, "phase", phase="measuring")
    samples.insert_event(owner, job_id, 2, "failed")
    job = job_queries.job(analyst, job_id)
    assert job is not None
    assert (job.error_code, job.error_traceback, job.duration_s) == ("out_of_memory", "Traceback …", 90.0)
    assert [attempt.number for attempt in job_queries.attempts(analyst, job_id)] == [2, 1]
    assert [event.type for event in job_queries.events(analyst, job_id)] == ["failed", "phase"]
    assert job_queries.job(analyst, job_id + 1) is None


def test_head_statistics_are_medians_and_shares_of_the_rows(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    columns = samples.gradient_scale_columns(3, 2, 4, QUERIES)
    job_id = samples.insert_result(owner, columns)
    rows = head_queries.head_statistics(analyst, [job_id])
    assert len(rows) == 6
    for row in rows:
        mine = (columns["layer"] == row.layer) & (columns["head"] == row.head)
        d_a, d_c = columns["log10_d_a"][mine], columns["log10_d_c"][mine]
        assert row.log10_d_a == pytest.approx(np.median(d_a), rel=1e-6)
        assert row.log10_d_c == pytest.approx(np.median(d_c), rel=1e-6)
        assert row.share == pytest.approx(np.mean(d_a > d_c))
        assert row.n == mine.sum()
    assert summary_queries.extent(analyst, [job_id]) == ([0, 1, 2], [0, 1])


def test_summaries_of_job_layer_and_head_hold_the_histogram(
    owner: psycopg.Connection, analyst: psycopg.Connection
) -> None:
    columns = samples.gradient_scale_columns(2, 2, 4, QUERIES)
    job_id = samples.insert_result(owner, columns)
    values = {"jobs": [job_id], "metrics": ["log10_d_a"]}
    (whole,) = summary_queries.summaries(analyst, summary_queries.JOB_SUMMARIES, **values)
    by_layer = summary_queries.summaries(analyst, summary_queries.LAYER_SUMMARIES, **values)
    (head,) = summary_queries.summaries(analyst, summary_queries.ONE_HEAD, layer=1, head=0, **values)
    for found, mine in [
        (whole, np.full(len(columns["layer"]), True)),
        *((each, columns["layer"] == each.layer) for each in by_layer),
        (head, (columns["layer"] == 1) & (columns["head"] == 0)),
    ]:
        rows = columns["log10_d_a"][mine].astype(float)
        assert found.histogram == np.histogram(rows, bins=200, range=(0, 20))[0].tolist()
        assert found.median == pytest.approx(np.median(rows))
    assert [each.layer for each in by_layer] == [0, 1]
    assert (whole.layer, whole.head, head.layer, head.head) == (None, None, 1, 0)


@pytest.mark.parametrize("order", get_args(Order))
def test_rows_of_a_head_come_in_order_with_the_text_before_them(
    owner: psycopg.Connection, analyst: psycopg.Connection, order: Order
) -> None:
    words = [[f" s{sequence}w{position}" for position in range(8)] for sequence in range(4)]
    columns = samples.gradient_scale_columns(1, 2, 4, QUERIES)
    job_id = samples.insert_result(owner, columns, dataset_id=samples.insert_dataset(owner, words))
    rows = head_queries.head_rows(analyst, job_id, 0, 1, order, limit=5, before=2)
    mine = columns["head"] == 1
    d_a, d_c = columns["log10_d_a"][mine], columns["log10_d_c"][mine]
    key = {"largest D_a": d_a, "largest D_c": d_c, "D_c above D_a": np.where(d_c > d_a, d_c - d_a, np.nan)}[order]
    places = [place for place in np.argsort(-key) if np.isfinite(key[place])][:5]
    expected = [(columns["sequence"][mine][place], columns["query"][mine][place]) for place in places]
    assert [(row.sequence, row.query) for row in rows] == expected
    for row in rows:
        assert row.context == "".join(words[row.sequence][row.query - 2 : row.query])
        assert row.token == words[row.sequence][row.query]


def test_the_sql_that_is_shown_runs_as_it_stands(owner: psycopg.Connection, analyst: psycopg.Connection) -> None:
    job_id = samples.insert_result(owner, samples.gradient_scale_columns(1, 2, 2, QUERIES))
    metrics = ["log10_d_a", "o'clock"]
    values = {"job": job_id, "layer": 0, "head": 0, "limit": 2, "before": 3}
    for text, rows in [
        (as_text(summary_queries.JOB_SUMMARIES, jobs=[job_id], metrics=metrics), 1),
        (as_text(head_queries.HEAD_STATISTICS, jobs=[job_id]), 2),
        (as_text(summary_queries.ONE_HEAD, jobs=[job_id], layer=0, head=1, metrics=metrics), 1),
        (as_text(head_queries.head_rows_sql("largest D_a"), **values), 2),
    ]:
        assert len(analyst.execute(text.encode()).fetchall()) == rows
