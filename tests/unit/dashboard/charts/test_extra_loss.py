"""The axis of extra losses and the figures drawn on it."""

import math

import pytest

from dashboard.charts.extra_loss import (
    ALL_AT_ONCE,
    LossPanel,
    Reference,
    decades,
    extra_loss_histogram,
    loss_by_layer,
    signed,
)
from dashboard.summaries import Summary


def _summary(layer: int, median: float | None, maximum: float | None, job_id: int = 1) -> Summary:
    return Summary(
        job_id,
        "extra_loss_nats",
        layer,
        None,
        100,
        0,
        0,
        mean=0.5,
        sd=1.0,
        minimum=-1.0,
        q01=-0.5,
        q05=-0.1,
        q25=0.0,
        median=median,
        q75=0.1,
        q95=1.0,
        q99=3.0,
        maximum=maximum,
        histogram_low=-5.0,
        histogram_width=0.1,
        histogram=[0] * 50 + [90] + [0] * 30 + [10] + [0] * 18,
    )


@pytest.mark.parametrize("nats", [0.1, 1.0, 13.9])
def test_the_axis_is_odd_and_counts_decades_beyond_a_thousandth(nats: float) -> None:
    assert decades(-nats) == -decades(nats)
    assert decades(10 * nats) - decades(nats) == pytest.approx(1, abs=1e-3)
    assert decades(0) == 0


@pytest.mark.parametrize(
    ("nats", "text"),
    [
        (13.94, "+13.9"),
        (4.76, "+4.76"),
        (-0.0021, "−0.0021"),
        (0.0, "0"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "+∞"),
    ],
)
def test_an_extra_loss_in_words(nats: float | None, text: str) -> None:
    assert signed(nats) == text


def test_layers_are_drawn_in_order_with_all_at_once_as_a_place_of_its_own() -> None:
    figure = loss_by_layer([LossPanel("", [_summary(1, 0.003, 9.0), _summary(ALL_AT_ONCE, 5.0, 12.0)])])
    median = next(trace for trace in figure.data if trace.name == "median")
    assert list(median.x) == [ALL_AT_ONCE, 1]
    assert list(median.y) == [decades(5.0), decades(0.003)]
    assert list(figure.layout.xaxis.ticktext) == ["all", "0", "1"]


def test_panels_share_one_axis_of_layers() -> None:
    one_by_one = [_summary(layer, 0.001, 1.0) for layer in range(8)]
    few = [_summary(layer, 0.001, 1.0) for layer in (0, 7)]
    together = [_summary(ALL_AT_ONCE, 5.0, 12.0)]
    axes = loss_by_layer([LossPanel(name, each) for name, each in (("a", one_by_one), ("b", few), ("c", together))])
    layout = axes.layout
    ticks = ("all", "0", "1", "2", "3", "4", "5", "6", "7")
    for axis in (layout.xaxis, layout.xaxis2, layout.xaxis3):
        assert axis.ticktext == ticks and axis.tickvals == (ALL_AT_ONCE, *range(8))
        assert axis.range == (-1.5, 7.5)


def test_statistics_that_are_missing_or_infinite_leave_a_gap() -> None:
    figure = loss_by_layer([LossPanel("", [_summary(0, None, math.inf)])])
    lines = {trace.name: trace.y for trace in figure.data}
    assert lines["median"] == (None,) and lines["maximum"] == (None,)


def test_the_articles_figures_are_drawn_where_there_are_any() -> None:
    reference = Reference("article", 4.76, 0.003, {15: 13.9})
    panels = [LossPanel("a", [_summary(0, 1.0, 2.0)]), LossPanel("b", [_summary(0, 1.0, 2.0)], reference)]
    article = [trace for trace in loss_by_layer(panels).data if trace.name == "article"]
    assert [decades(4.76), decades(13.9)] == [article[0].y[0], article[2].y[0]]
    assert [trace.showlegend for trace in article] == [True, False, False]


def test_a_distribution_shows_shares_of_tokens_and_none_at_the_lower_end_of_its_axis() -> None:
    figure = extra_loss_histogram([_summary(0, 0.0, 1.0)], {1: "job"})
    (trace,) = figure.data
    assert trace.y[50] == 90 and trace.y[81] == 10
    assert trace.y[0] == 10 ** figure.layout.yaxis.range[0] < 10
    assert "90 tokens" in trace.customdata[50]
