"""Heads as points of two statistics, coloured by layer, one panel per job; points can be clicked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    BELOW,
    NEUTRAL,
    TICK_LABELS,
    finite,
    lay_out,
    log10_axis,
    panel_title,
    title_pixels,
)

PANELS_PER_ROW = 3
Corner = tuple[Literal["left", "right"], Literal["low", "high"]]
_CHOSEN = "#e0218a"


@dataclass(frozen=True)
class Axis:
    """``split`` divides the plane; values of a logarithmic axis, and its split, are log10."""

    title: str
    logarithmic: bool
    split: float | None = None
    percent: bool = False


@dataclass(frozen=True)
class HeadPoint:
    job_id: int
    layer: int
    head: int
    x: float | None
    y: float | None
    words: str  # lines below layer and head when one points at it


@dataclass(frozen=True)
class ScatterPanel:
    title: str
    points: Sequence[HeadPoint]
    corners: Mapping[Corner, str]  # what stands in the corners of the divided plane


def head_scatter(
    panels: Sequence[ScatterPanel], x: Axis, y: Axis, *, diagonal: str = "", selected: tuple[int, int] | None = None
) -> go.Figure:
    """All panels share both axes. ``diagonal`` labels the line y = x, which is drawn if it has a label."""
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    titles = [panel_title(panel.title, columns) for panel in panels] if len(panels) > 1 else []
    top, between = 16 + title_pixels(titles), TICK_LABELS + 24 + title_pixels(titles)
    height = 400 if rows == 1 else 300
    area = height * rows + between * (rows - 1)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=between / area if rows > 1 else 0,
        subplot_titles=titles or None,
    )
    every = [point for panel in panels for point in panel.points]
    x_range, y_range = _range([p.x for p in every], x), _range([p.y for p in every], y)
    for index, panel in enumerate(panels):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        known = [p for p in panel.points if finite([p.x]) and finite([p.y])]
        figure.add_trace(_points(known, selected), **place)
        if diagonal:
            low, high = max(x_range[0], y_range[0]), min(x_range[1], y_range[1])
            figure.add_trace(_line(low, high, diagonal), **place)
        if x.split is not None and y.split is not None:
            line = {"color": NEUTRAL, "dash": "dot", "width": 1.5}
            figure.add_vline(x=x.split, line=line, **place)
            figure.add_hline(y=y.split, line=line, **place)
        for (side, level), text in panel.corners.items():
            figure.add_annotation(
                x=x_range[side == "right"],
                y=y_range[level == "high"],
                text=text,
                showarrow=False,
                xanchor=side,
                yanchor="top" if level == "high" else "bottom",
                font={"color": NEUTRAL},
                **place,
            )
    for update, axis, shown in ((figure.update_xaxes, x, x_range), (figure.update_yaxes, y, y_range)):
        if axis.logarithmic:
            update(**log10_axis(*shown, ""))
        else:
            update(range=list(shown), zeroline=False, tickformat=".0%" if axis.percent else None)
    figure.update_xaxes(title_text=x.title, row=rows)
    figure.update_yaxes(title_text=y.title, col=1)
    layers = 1 + max((point.layer for point in every), default=0)
    return lay_out(
        figure,
        height=top + area + BELOW,
        margin={"l": 10, "r": 10, "t": top, "b": BELOW},
        clickmode="event+select",
        showlegend=False,
        coloraxis={
            "colorscale": "Viridis",
            "cmin": 0,
            "cmax": max(1, layers - 1),
            "colorbar": {"title": {"text": "layer", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        },
    )


def _points(points: Sequence[HeadPoint], selected: tuple[int, int] | None) -> go.Scatter:
    chosen = [(p.layer, p.head) == selected for p in points]
    return go.Scatter(
        x=[p.x for p in points],
        y=[p.y for p in points],
        mode="markers",
        marker={
            "size": [13 if each else 8 for each in chosen],
            "color": [p.layer for p in points],
            "coloraxis": "coloraxis",
            "line": {
                "color": [_CHOSEN if each else "white" for each in chosen],
                "width": [3 if c else 0.5 for c in chosen],
            },
        },
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
        customdata=[[p.job_id, p.layer, p.head] for p in points],
        text=[f"layer {p.layer}, head {p.head}<br>{p.words}" for p in points],
        hovertemplate="%{text}<extra></extra>",
    )


def _line(low: float, high: float, label: str) -> go.Scatter:
    return go.Scatter(
        x=[low, high],
        y=[low, high],
        mode="lines+text",
        line={"color": NEUTRAL, "width": 2, "dash": "dash"},
        text=["", f"{label} "],
        textposition="bottom left",
        textfont={"color": NEUTRAL},
        hoverinfo="skip",
    )


def _range(values: Sequence[float | None], axis: Axis) -> tuple[float, float]:
    """All values and the split, with a margin; whole where they are shares."""
    if axis.percent and not axis.logarithmic:
        return -0.02, 1.02
    known = finite([*values, axis.split]) or [0.0, 1.0]
    low, high = min(known), max(known)
    margin = max(0.06 * (high - low), 0.05)
    return low - margin, high + margin
