"""Outlines of stored histograms on a linear axis."""

from dataclasses import replace

import pytest

from dashboard.charts.metric_histograms import metric_histograms
from tests.unit.dashboard.charts.summary_rows import summary


def test_each_job_is_a_step_line_of_shares_that_add_up_to_a_hundred() -> None:
    found = [summary([0.05, 0.15, 0.15, 0.95]), summary([1.05, 1.15], job_id=2)]
    figure = metric_histograms(found, {1: "one", 2: "two"}, "entropy")
    assert [trace.name for trace in figure.data] == ["one", "two"]
    assert figure.data[0].line.shape == "hv"
    assert list(figure.data[0].y[:3]) == [25.0, 50.0, 0.0]
    assert all(sum(trace.y[:-1]) == pytest.approx(100) for trace in figure.data)
    assert figure.layout.xaxis.range == pytest.approx((0.0, 1.2))


def test_a_mark_is_drawn_only_where_the_axis_reaches() -> None:
    marked = metric_histograms([summary([0.5, 1.5])], {1: "one"}, "x", marks={"here": 1.0, "far": 9.0})
    assert [shape.x0 for shape in marked.layout.shapes] == [1.0]


def test_a_name_with_tags_is_shown_as_text() -> None:
    figure = metric_histograms([summary([0.5])], {1: "<b>job</b>"}, "x")
    assert "<b>" not in figure.data[0].name


def test_an_end_bin_that_counts_what_lies_beyond_is_named_so() -> None:
    open_ended = metric_histograms([summary([0.5, 19.95, 31.0, -4.0])], {1: "one"}, "x")
    bars = open_ended.data[0]
    assert bars.customdata[0] == "0.1 and less: 25.00 % (1 rows)"
    assert bars.customdata[199] == bars.customdata[200] == "19.9 and more: 50.00 % (2 rows)"
    assert bars.customdata[5].startswith("from 0.5: ")
    assert open_ended.layout.xaxis.title.text == "x (first bin: 0.1 and less; last bin: 19.9 and more)"
    closed = metric_histograms([summary([0.05, 19.95])], {1: "one"}, "x")
    assert closed.layout.xaxis.title.text == "x"
    assert closed.data[0].customdata[199].startswith("from 19.9: ")


def test_jobs_with_different_bins_are_drawn_by_their_own() -> None:
    older = replace(summary([0.5], job_id=2), histogram_low=-1.0, histogram_width=0.02, histogram=[0] * 99 + [7])
    figure = metric_histograms([summary([0.5]), older], {1: "new", 2: "old"}, "x")
    assert figure.data[1].x[-1] == pytest.approx(1.0)
    assert figure.data[0].x[-1] == pytest.approx(20.0)
    assert figure.layout.xaxis.range == pytest.approx((0.5, 1.0))
