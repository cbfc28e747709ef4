"""What stands in the figures of coalitions and attention ranks."""

import pytest

from dashboard.charts.attention_ranks import RankLine, attention_ranks
from dashboard.charts.coalition import LESS, MORE, PickMark, coalition
from dashboard.charts.coalition_layers import CoalitionLayers, coalition_layers
from tests.unit.dashboard.charts.summary_rows import summary

HOSTILE = '<b>"x"</b>'
PICKS = [
    PickMark(head=0, key=7, advantage=-3.0, weight=0.1, attention_rank=4, place=1, agrees=True),
    PickMark(head=0, key=2, advantage=1.0, weight=0.2, attention_rank=2, place=2, agrees=False),
    PickMark(head=2, key=7, advantage=-1.5, weight=0.0, attention_rank=600, place=1, agrees=True),
]


def test_picks_stand_at_their_head_and_key_with_their_sign() -> None:
    figure = coalition(PICKS, {2: "two", 7: HOSTILE}, {7: -1})
    more, less, top = figure.data
    assert (more.x, more.y, more.marker.color) == ((0,), (0,), MORE)
    assert (less.x, less.y, less.marker.color) == ((1, 1), (0, 2), LESS)
    assert more.marker.symbol == ("circle-open",)
    assert less.marker.symbol == ("circle", "circle")
    assert less.marker.size[0] > less.marker.size[1]
    assert (top.x, top.y) == ((1, 1), (0, 2))
    assert figure.layout.shapes[0].x0 == 0.5


def test_texts_of_tokens_are_escaped() -> None:
    figure = coalition(PICKS, {2: "two", 7: HOSTILE}, {7: -1})
    assert figure.layout.xaxis.ticktext == ("two 2", '<b>&lt;b&gt;"x"&lt;/b&gt; 7</b>')
    assert HOSTILE not in "".join(figure.data[1].customdata)


def test_ranks_are_shares_of_the_keys_with_their_median() -> None:
    figure = attention_ranks(
        [RankLine("job", summary([0.05, 0.05, 1.25, 2.05], metric="log10_attention_rank"))], "rank"
    )
    (line,) = figure.data
    heights = dict(zip(line.x, line.y, strict=True))
    assert heights[0.0] == 50
    assert [height for rank, height in heights.items() if rank > 1 and height] == [25, 25]
    assert figure.layout.shapes[0].x0 == pytest.approx(0.65)
    assert figure.layout.xaxis.range[1] > 2.1


def test_layers_show_the_share_that_does_not_abstain_and_the_ranks() -> None:
    rows = [summary([1.0, 0.0, 1.0, 1.0], metric="abstains", layer=1), summary([1.0], metric="abstains", layer=0)]
    rows.append(summary([1.0, 2.0, 3.0], metric="log10_attention_rank", layer=1))
    figure = coalition_layers([CoalitionLayers("job", rows)], selected=1)
    bars, points = figure.data
    assert (bars.x, bars.y) == ((0, 1), (0, 25))
    assert (points.x, points.y) == ((1,), (2.0,))
    assert (points.error_y.array, points.error_y.arrayminus) == ((0.5,), (0.5,))
    assert figure.layout.shapes[0].x0 == 0.5
