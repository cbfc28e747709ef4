"""Heads as points: where they stand, what a click gives, and how the plane is divided."""

from dashboard.charts.head_scatter import Axis, HeadPoint, ScatterPanel, head_scatter
from dashboard.charts.sigma_factors import PANELS, sigma_factors
from dashboard.summaries import Summary

POINTS = [
    HeadPoint(7, 0, 1, -3.0, 0.5, "one"),
    HeadPoint(7, 2, 0, -1.0, -0.5, "two"),
    HeadPoint(7, 1, 0, None, 0.1, "undefined"),
    HeadPoint(7, 1, 1, float("-inf"), 0.1, "infinite"),
]


def test_points_carry_their_head_and_undefined_ones_are_left_out() -> None:
    figure = head_scatter([ScatterPanel("a", POINTS, {})], Axis("x", True), Axis("y", True), selected=(2, 0))
    points = figure.data[0]
    assert [list(each) for each in points.customdata] == [[7, 0, 1], [7, 2, 0]]
    assert (list(points.x), list(points.y)) == ([-3.0, -1.0], [0.5, -0.5])
    assert list(points.marker.color) == [0, 2]
    assert points.marker.size[1] > points.marker.size[0]


def test_the_diagonal_is_where_both_axes_agree() -> None:
    figure = head_scatter([ScatterPanel("a", POINTS, {})], Axis("x", True), Axis("y", True), diagonal="equal")
    line = figure.data[1]
    assert list(line.x) == list(line.y)
    assert line.text[1].strip() == "equal"
    assert figure.layout.xaxis.range[0] < -3 and figure.layout.yaxis.range[1] > 0.5


def test_corners_are_labelled_in_every_panel_of_a_divided_plane() -> None:
    panels = [ScatterPanel(name, POINTS[:2], {("right", "low"): f"{name}: both"}) for name in ("a", "b")]
    figure = head_scatter(panels, Axis("mass", False, 0.75, percent=True), Axis("rank", True, -1.0))
    labels = {each.text: each for each in figure.layout.annotations}
    assert {"a: both", "b: both"} <= set(labels)
    assert (labels["a: both"].xanchor, labels["a: both"].yanchor) == ("right", "bottom")
    assert len(figure.layout.shapes) == 4


def _summary(job_id: int, metric: str, layer: int, median: float | None) -> Summary:
    return Summary(job_id, metric, layer, None, 4, 0, 0, median, 0, median, *[median] * 7, median, 0.0, 0.1, [0] * 3)


def test_each_factor_has_its_own_panel_and_each_job_its_line() -> None:
    found = [_summary(job, metric, layer, layer + job) for job in (1, 2) for metric in PANELS for layer in (1, 0)]
    figure = sigma_factors([*found, _summary(1, "log10_weight_norm", 2, None)], {1: "one", 2: "two"})
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert len(lines) == 2 * len(PANELS)
    assert [list(line.x) for line in lines] == [[0, 1]] * 6  # layers in order, those without matrices left out
    assert {tuple(line.y) for line in lines} == {(1, 2), (2, 3)}
    assert [line.showlegend for line in lines] == [True, True] + [False] * 4
    assert figure.layout.xaxis.range == (-0.5, 2.5)  # no tick beyond the last layer
