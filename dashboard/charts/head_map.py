"""Layer by head heat maps of one statistic, one panel per job, all on one colour scale; cells can be clicked."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    ADVANTAGE_SCALE,
    ATTENTION_SCALE,
    BELOW,
    DIFFERENCE_SCALE,
    TICK_LABELS,
    finite,
    integer_step,
    lay_out,
    panel_title,
    title_pixels,
)
from dashboard.formats import percent, power_of_ten, tick

_LETTER = 7.5  # pixels of one in the title of the colour bar, on average


@dataclass(frozen=True)
class Statistic:
    """What a cell shows: its label, its colours and how a value reads in words."""

    name: str
    label: str
    scale: list[list[object]]
    words: Callable[[float | None], str]
    centre: float | None = None  # value of the middle colour of a diverging scale
    logarithmic: bool = True  # values are log10
    tick_format: str = ".0%"  # of the colour bar, where they are not


STATISTICS = {
    statistic.name: statistic
    for statistic in (
        Statistic("d_a", "median D_a", ATTENTION_SCALE, power_of_ten),
        Statistic("d_c", "median D_c", ADVANTAGE_SCALE, power_of_ten),
        Statistic("difference", "median D_a / median D_c", DIFFERENCE_SCALE, power_of_ten, centre=0.0),
        Statistic("share", "share with D_a > D_c", DIFFERENCE_SCALE, percent, centre=0.5, logarithmic=False),
    )
}


@dataclass(frozen=True)
class Cell:
    """One head of one job; ``value`` is log10 for logarithmic statistics, None where nothing is defined."""

    job_id: int
    layer: int
    head: int
    value: float | None


@dataclass(frozen=True)
class HeadMap:
    title: str
    cells: Sequence[Cell]


def head_map(maps: Sequence[HeadMap], statistic: Statistic, selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers from left to right, heads from top to bottom. ``selected`` (layer, head) is framed in every panel.

    A heat map cannot be selected from in plotly, so invisible markers lie over its cells and carry
    (job, layer, head) as custom data.
    """
    heads = [1 + max((cell.head for cell in each.cells), default=0) for each in maps]
    titles = [panel_title(each.title, columns=1) for each in maps] if len(maps) > 1 else []
    top, between = 16 + title_pixels(titles), TICK_LABELS + 16 + title_pixels(titles)
    row_heights = [max(110, 24 * number) for number in heads]
    area = sum(row_heights) + between * (len(maps) - 1)
    figure = make_subplots(
        rows=len(maps),
        cols=1,
        row_heights=row_heights,
        vertical_spacing=between / area if len(maps) > 1 else 0,
        subplot_titles=titles or None,
    )
    colour_axis = _colour_axis([cell.value for each in maps for cell in each.cells], statistic, area)
    for row, (each, head_count) in enumerate(zip(maps, heads, strict=True), start=1):
        layer_count = 1 + max((cell.layer for cell in each.cells), default=0)
        values: list[list[float | None]] = [[None] * layer_count for _ in range(head_count)]
        for cell in each.cells:
            infinite = cell.value is not None and math.isinf(cell.value)
            values[cell.head][cell.layer] = colour_axis["cmax"] if infinite else cell.value
        figure.add_trace(go.Heatmap(z=values, coloraxis="coloraxis", xgap=1, ygap=1, hoverinfo="skip"), row=row, col=1)
        figure.add_trace(_targets(each.cells, statistic), row=row, col=1)
        if selected and selected[0] < layer_count and selected[1] < head_count:
            layer, head = selected
            figure.add_shape(
                type="rect",
                x0=layer - 0.5,
                x1=layer + 0.5,
                y0=head - 0.5,
                y1=head + 0.5,
                line={"color": "#e0218a", "width": 2.5},
                row=row,
                col=1,
            )
        figure.update_yaxes(
            range=[head_count - 0.5, -0.5], title_text="head", dtick=integer_step(head_count, 12), row=row, col=1
        )
        figure.update_xaxes(range=[-0.5, layer_count - 0.5], dtick=integer_step(layer_count, 32), row=row, col=1)
    figure.update_xaxes(title_text="layer", row=len(maps), col=1)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False)
    return lay_out(
        figure,
        height=top + area + BELOW,
        margin={"l": 10, "r": 10, "t": top, "b": BELOW},
        coloraxis=colour_axis,
        clickmode="event+select",
        showlegend=False,
    )


def _targets(cells: Sequence[Cell], statistic: Statistic) -> go.Scatter:
    return go.Scatter(
        x=[cell.layer for cell in cells],
        y=[cell.head for cell in cells],
        mode="markers",
        marker={"symbol": "square", "size": 18, "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=[[cell.job_id, cell.layer, cell.head] for cell in cells],
        text=[
            f"layer {cell.layer}, head {cell.head}<br>{statistic.label}: {statistic.words(cell.value)}"
            for cell in cells
        ],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )


def _colour_axis(values: Sequence[float | None], statistic: Statistic, pixels: int) -> dict[str, Any]:
    """The colour bar is ``pixels`` high, and so are the lines of its title, which stands upright beside it."""
    known = finite(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if statistic.centre is not None:
        reach = max(high - statistic.centre, statistic.centre - low, 0.1)
        low, high = statistic.centre - reach, statistic.centre + reach
    elif high - low < 0.1:
        low = min(low, 0.9) if statistic.tick_format.endswith("%") and not statistic.logarithmic else low
        high = low + 0.1  # of shares no more than 1
    bar: dict[str, Any] = {
        "title": {"text": "<br>".join(textwrap.wrap(statistic.label, int(pixels / _LETTER))), "side": "right"},
        "thickness": 12,
        "len": 1.0,
        "outlinewidth": 0,
    }
    if statistic.logarithmic:
        steps = [step for step in range(-30, 60) if low <= step <= high]
        steps = steps[steps.index(0) % integer_step(len(steps), 7) if 0 in steps else 0 :: integer_step(len(steps), 7)]
        if len(steps) >= 2:
            bar |= {"tickmode": "array", "tickvals": steps, "ticktext": [tick(step) for step in steps]}
        else:
            spread = [low, (low + high) / 2, high]
            bar |= {"tickmode": "array", "tickvals": spread, "ticktext": [power_of_ten(value) for value in spread]}
    else:
        bar |= {"tickformat": statistic.tick_format, "nticks": max(3, pixels // 40)}
    return {"colorscale": statistic.scale, "cmin": low, "cmax": high, "colorbar": bar}
