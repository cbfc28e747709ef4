"""What stands in the layer by head map."""

import math
from itertools import pairwise

import pytest

from dashboard.charts.head_map import STATISTICS, Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ATTENTION_SCALE
from dashboard.formats import percent


def cells(job_id: int, layers: int, heads: int, offset: float = 0.0) -> list[Cell]:
    return [Cell(job_id, layer, head, offset + layer + head / 10) for layer in range(layers) for head in range(heads)]


def test_rows_are_heads_and_columns_are_layers() -> None:
    figure = head_map([HeadMap("job", cells(1, 4, 3))], STATISTICS["d_a"])
    z = figure.data[0].z
    assert (len(z), len(z[0])) == (3, 4)
    assert z[2][3] == pytest.approx(3.2)


def test_every_cell_can_be_clicked_and_says_which_head_it_is() -> None:
    figure = head_map([HeadMap("job", cells(7, 2, 2))], STATISTICS["d_a"])
    targets = figure.data[1]
    clicked = dict(zip(zip(targets.x, targets.y, strict=True), map(tuple, targets.customdata), strict=True))
    assert clicked == {(layer, head): (7, layer, head) for layer in range(2) for head in range(2)}


def test_jobs_share_one_colour_scale_from_the_smallest_to_the_largest_value() -> None:
    figure = head_map([HeadMap("a", cells(1, 2, 2)), HeadMap("b", cells(2, 3, 1, offset=5))], STATISTICS["d_a"])
    assert {trace.coloraxis for trace in figure.data if trace.type == "heatmap"} == {"coloraxis"}
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0.0, 7.0)


@pytest.mark.parametrize(("name", "centre"), [("difference", 0.0), ("share", 0.5)])
def test_diverging_colours_change_at_the_point_of_balance(name: str, centre: float) -> None:
    figure = head_map([HeadMap("job", cells(1, 3, 3))], STATISTICS[name])
    axis = figure.layout.coloraxis
    assert (axis.cmin + axis.cmax) / 2 == pytest.approx(centre)


def test_heads_without_a_value_stay_empty() -> None:
    figure = head_map([HeadMap("job", [Cell(1, 0, 0, 1.0), Cell(1, 1, 0, None)])], STATISTICS["d_a"])
    assert figure.data[0].z == ([1.0, None],)
    assert "–" in figure.data[1].text[1]


def test_an_infinite_value_has_the_last_colour_and_does_not_widen_the_scale() -> None:
    cells = [Cell(1, 0, 0, 1.0), Cell(1, 1, 0, 4.0), Cell(1, 2, 0, math.inf)]
    figure = head_map([HeadMap("job", cells)], STATISTICS["d_a"])
    assert figure.data[0].z == ([1.0, 4.0, 4.0],)
    assert figure.layout.coloraxis.cmax == 4.0
    assert "∞" in figure.data[1].text[2]


def test_the_selected_head_is_framed_where_it_exists() -> None:
    maps = [HeadMap("small", cells(1, 2, 2)), HeadMap("large", cells(2, 4, 4))]
    figure = head_map(maps, STATISTICS["d_a"], selected=(3, 3))
    assert [(shape.x0, shape.y0) for shape in figure.layout.shapes] == [(2.5, 2.5)]


@pytest.mark.parametrize("heads", [1, 9, 32])
def test_the_title_of_the_colour_bar_fits_beside_it(heads: int) -> None:
    label = "share with effective rank below 10"
    figure = head_map([HeadMap("job", cells(1, 3, heads))], Statistic("share", label, ATTENTION_SCALE, percent))
    layout = figure.layout
    lines = layout.coloraxis.colorbar.title.text.split("<br>")
    assert " ".join(lines) == label
    assert 7.3 * max(map(len, lines)) <= layout.height - layout.margin.t - layout.margin.b  # a letter is 7.3 pixels


@pytest.mark.parametrize("heads", [[2, 2], [1, 9], [3] * 6, [32, 32]])
def test_titles_stand_clear_of_the_tick_labels_above_them(heads: list[int]) -> None:
    maps = [HeadMap(f"job {number}", cells(number, 3, count)) for number, count in enumerate(heads)]
    layout = head_map(maps, STATISTICS["d_a"]).layout
    pixels = layout.height - layout.margin.t - layout.margin.b
    domains = [layout["yaxis" if row == 0 else f"yaxis{row + 1}"].domain for row in range(len(heads))]
    for above, below in pairwise(domains):
        assert (above[0] - below[1]) * pixels >= 24 + 18 + 10  # tick labels, one line of title, air


def test_the_scale_of_shares_ends_at_one() -> None:
    share = Statistic("share", "share", ATTENTION_SCALE, percent, logarithmic=False)
    axis = head_map([HeadMap("job", [Cell(1, 0, 0, 1.0), Cell(1, 1, 0, 0.97)])], share).layout.coloraxis
    assert (axis.cmin, axis.cmax) == pytest.approx((0.9, 1.0))
