"""Shares of queries layer by layer, one panel per job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    BELOW,
    NEUTRAL,
    TICK_LABELS,
    integer_step,
    lay_out,
    panel_title,
    title_pixels,
)
from dashboard.formats import percent
from dashboard.summaries import Summary

PANELS_PER_ROW = 3


@dataclass(frozen=True)
class Line:
    label: str
    colour: str
    dash: str = "solid"


@dataclass(frozen=True)
class SharePanel:
    """One job's layer summaries of metrics that are 1 or 0, in any order."""

    title: str
    summaries: Sequence[Summary]


def share_layers(panels: Sequence[SharePanel], lines: Mapping[str, Line]) -> go.Figure:
    """Means of each metric by layer; ``lines`` by metric name. Dashed across: one half."""
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    titles = [panel_title(panel.title, columns) for panel in panels] if len(panels) > 1 else []
    top, between = 46 + title_pixels(titles), TICK_LABELS + 16 + title_pixels(titles)
    area = 210 * rows + between * (rows - 1)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes="all",
        horizontal_spacing=0.04,
        vertical_spacing=between / area if rows > 1 else 0,
        subplot_titles=titles or None,
    )
    for index, panel in enumerate(panels):
        for metric, line in lines.items():
            chosen = sorted((s for s in panel.summaries if s.metric == metric), key=lambda s: s.layer or 0)
            figure.add_trace(
                go.Scatter(
                    x=[s.layer for s in chosen],
                    y=[s.mean for s in chosen],
                    mode="lines+markers",
                    line={"color": line.colour, "dash": line.dash, "width": 2},
                    marker={"size": 5},
                    name=line.label,
                    legendgroup=metric,
                    showlegend=index == 0,
                    customdata=[percent(s.mean) for s in chosen],
                    hovertemplate="%{customdata}",
                ),
                row=index // columns + 1,
                col=index % columns + 1,
            )
    figure.add_hline(y=0.5, line={"color": NEUTRAL, "dash": "dash", "width": 1}, row="all", col="all")
    figure.update_yaxes(tickformat=".0%", range=[0, 1], zeroline=False)
    figure.update_yaxes(title_text="share of queries", col=1)
    layers = 1 + max((s.layer or 0 for panel in panels for s in panel.summaries), default=0)
    step = integer_step(layers, 32 // columns)
    figure.update_xaxes(showgrid=False, zeroline=False, tick0=0, dtick=step, range=[-0.5, layers - 0.5])
    figure.update_xaxes(title_text="layer", row=rows)
    margin = {"l": 10, "r": 10, "t": top, "b": BELOW}
    lay_out(figure, height=top + area + BELOW, hovermode="x unified", margin=margin)
    return figure.update_layout(legend={"y": 1 + (title_pixels(titles) + 8) / area, "x": 1.0, "xanchor": "right"})
