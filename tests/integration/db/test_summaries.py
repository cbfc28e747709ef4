"""Summaries agree with NumPy on the same rows, at every level, infinities and NaN included."""

import numpy as np
import psycopg
import pytest

from db import summaries
from db.repositories import summaries as stored
from services.contracts.jobs import SummaryRow
from services.contracts.kinds import KINDS
from services.contracts.tables import SummaryMetric
from tests.integration.db.conftest import Columns, NewJob, gradient_scale_rows

METRICS = KINDS["gradient_scale"].metrics
QUANTILES = {"q01": 0.01, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "q99": 0.99}


def _values(metric: SummaryMetric, columns: Columns) -> np.ndarray:
    if metric.name == "d_a_exceeds_d_c":
        exceeds = (columns["log10_d_a"] > columns["log10_d_c"]).astype(np.float64)
        return np.where(np.isnan(columns["log10_d_c"]), np.nan, exceeds)
    return columns[metric.name].astype(np.float64)


def _chosen(row: SummaryRow, columns: Columns) -> np.ndarray:
    mask = np.ones(len(columns["layer"]), bool)
    if row.layer is not None:
        mask &= columns["layer"] == row.layer
    if row.head is not None:
        mask &= columns["head"] == row.head
    return mask


def _check(row: SummaryRow, metric: SummaryMetric, values: np.ndarray) -> None:
    defined = values[~np.isnan(values)]
    finite = values[np.isfinite(values)]
    assert (row.n, row.n_infinite, row.n_undefined) == (len(values), np.isinf(values).sum(), np.isnan(values).sum())
    assert row.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert row.sd == pytest.approx(finite.std(ddof=1), rel=1e-9, abs=1e-12)
    assert (row.minimum, row.maximum) == (defined.min(), defined.max())
    for name, share in QUANTILES.items():
        low = np.quantile(defined, share, method="lower")
        high = np.quantile(defined, share, method="higher")
        expected = np.quantile(defined, share) if np.isfinite(high) else (low if low == high else high)
        assert getattr(row, name) == pytest.approx(expected, rel=1e-12), name
    bins = np.clip(np.floor((defined - metric.low) / metric.width), 0, metric.bins - 1).astype(int)
    assert row.histogram == np.bincount(bins, minlength=metric.bins).tolist()
    assert (row.histogram_low, row.histogram_width) == (metric.low, metric.width)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "with infinities and NaN"])
def test_every_statistic_equals_numpy_by_head_layer_and_job(
    conn: psycopg.Connection, new_job: NewJob, special: bool
) -> None:
    columns = gradient_scale_rows(sequences=4, layers=3, heads=2, queries=50)
    if special:
        columns["log10_d_a"][::7] = np.inf
        columns["log10_d_a"][(columns["layer"] == 1) & (columns["head"] == 1) & (columns["query"] > 9)] = np.inf
        columns["log10_d_c"][::5] = np.nan
        columns["log10_d_c"][3::50] = -np.inf
        columns["log10_d_c"][4::50] = 1e30
    new_job(gradient_scale_rows(seed=1))  # another job's rows count for nothing
    job_id = new_job(columns)
    assert summaries.compute(conn, job_id, METRICS) == 3 * (3 * 2 + 3 + 1)
    for metric in METRICS:
        rows = stored.of_job(conn, job_id, metric.name)
        assert len(rows) == 10
        values = _values(metric, columns)
        for row in rows:
            _check(row, metric, values[_chosen(row, columns)])


def test_computing_again_replaces_and_leaves_other_jobs_alone(conn: psycopg.Connection, new_job: NewJob) -> None:
    first, second = new_job(gradient_scale_rows()), new_job(gradient_scale_rows(seed=2))
    for job_id in (first, second, first):
        summaries.compute(conn, job_id, METRICS)
    before = stored.of_job(conn, second)
    assert stored.of_job(conn, first) != before
    summaries.compute(conn, second, METRICS)
    assert stored.of_job(conn, second) == before
    assert conn.execute("SELECT count(*) FROM keyhole.summary").fetchone() == (2 * 3 * 9,)


def test_rows_without_a_defined_value_have_counts_and_no_statistics(conn: psycopg.Connection, new_job: NewJob) -> None:
    columns = gradient_scale_rows(sequences=1, layers=1, heads=1, queries=4)
    columns["log10_d_c"][:] = np.nan
    job_id = new_job(columns)
    summaries.compute(conn, job_id, METRICS)
    (row,) = stored.of_job(conn, job_id, "log10_d_c", "head")
    assert (row.n, row.n_undefined, row.mean, row.median, row.maximum) == (4, 4, None, None, None)
    assert row.histogram == [0] * 200


def test_a_job_without_rows_has_one_empty_summary_per_metric(conn: psycopg.Connection, new_job: NewJob) -> None:
    job_id = new_job()
    assert summaries.compute(conn, job_id, METRICS) == len(METRICS)
    assert [(row.layer, row.n, row.mean) for row in stored.of_job(conn, job_id)] == [(None, 0, None)] * len(METRICS)
