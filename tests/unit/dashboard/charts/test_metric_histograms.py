"""Outlines of stored histograms on a linear axis."""

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
