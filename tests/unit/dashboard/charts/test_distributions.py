"""What stands in the figure of distributions."""

import math
from itertools import pairwise

import numpy as np
import pytest

from dashboard.charts.distributions import Panel, distributions
from tests.unit.dashboard.charts.summary_rows import summary


def test_bars_hold_the_percent_of_rows_in_each_bin() -> None:
    values = [0.05, 0.15, 0.15, 0.15, 3.02]
    figure = distributions([Panel("job", {"log10_d_a": summary(values)})])
    bars = figure.data[0]
    expected, edges = np.histogram(values, bins=200, range=(0, 20))
    assert bars.y == pytest.approx(100 * expected / 5)
    assert bars.x == pytest.approx((edges[:-1] + edges[1:]) / 2)


def test_d_a_stands_above_d_c_on_the_same_axis() -> None:
    panel = Panel("job", {"log10_d_a": summary([3.0, 4.0]), "log10_d_c": summary([0.6, 0.7], "log10_d_c")})
    figure = distributions([panel])
    attention, advantage = figure.data
    assert (
        figure.layout[attention.yaxis.replace("y", "yaxis")].domain[0]
        > figure.layout[advantage.yaxis.replace("y", "yaxis")].domain[1] - 1e-9
    )
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range


def test_ticks_are_labelled_with_the_number_whose_logarithm_they_are() -> None:
    figure = distributions([Panel("job", {"log10_d_a": summary([0.0, 4.0])})])
    axis = figure.layout.xaxis
    labels = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    assert (labels[0], labels[1], labels[2], labels[3]) == ("1", "10", "100", "10³")


def test_jobs_share_axes_so_that_they_can_be_compared() -> None:
    near = Panel("a", {"log10_d_a": summary([0.5, 1.0])})
    far = Panel("b", {"log10_d_a": summary([5.0, 6.0])})
    figure = distributions([near, far])
    ranges = {tuple(figure.layout[f"xaxis{number}"].range) for number in ("", 2, 3, 4)}
    assert len(ranges) == 1
    assert ranges.pop()[1] > 6.0


def test_infinite_values_are_in_no_bar_and_do_not_stretch_the_axis() -> None:
    figure = distributions([Panel("job", {"log10_d_a": summary([1.0, 1.0, 1.0, math.inf])})])
    assert sum(figure.data[0].y) == pytest.approx(75.0)
    assert figure.layout.xaxis.range[1] < 2


def test_a_title_with_tags_is_shown_as_text() -> None:
    panels = [Panel("<b>x</b> & y", {}), Panel("z", {})]
    texts = [annotation.text for annotation in distributions(panels).layout.annotations]
    assert "&lt;b&gt;x&lt;/b&gt; &amp; y" in texts


def test_six_jobs_are_laid_out_in_two_bands_of_three() -> None:
    panels = [Panel(str(n), {"log10_d_a": summary([1.0]), "log10_d_c": summary([0.5], "log10_d_c")}) for n in range(6)]
    figure = distributions(panels)
    assert len({trace.xaxis for trace in figure.data}) == 12
    assert len({tuple(figure.layout[trace.xaxis.replace("x", "xaxis")].domain) for trace in figure.data}) == 3


@pytest.mark.parametrize("count", [2, 3, 5])
def test_long_titles_are_broken_into_lines_between_their_parts_and_get_room(count: int) -> None:
    parts = ["Job 21", "path:/tmp/newuser/models/tinyllama", "credit own_token", "bfloat16"]
    title = " · ".join(parts)
    layout = distributions([Panel(title, {"log10_d_a": summary([1.0])}) for _ in range(count)]).layout
    shown = [annotation.text for annotation in layout.annotations if "Job 21" in annotation.text]
    assert [text.replace("<br>", " · ") for text in shown] == [title] * count
    lines = 1 + shown[0].count("<br>")
    assert layout.margin.t >= 18 * lines
    pixels = layout.height - layout.margin.t - layout.margin.b
    rows = sorted({layout[name].domain for name in layout if name.startswith("yaxis")}, reverse=True)
    gaps = [(above[0] - below[1]) * pixels for above, below in pairwise(rows)]
    assert min(gaps) == pytest.approx(34)  # D_a over D_c of one job
    assert all(gap >= 24 + 18 * lines for gap in gaps[1::2])  # tick labels and title between two bands
