"""The median and the middle half of D_a and D_c layer by layer, one panel per job."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    BELOW,
    COLOURS,
    NAMES,
    TICK_LABELS,
    finite,
    integer_step,
    lay_out,
    log10_axis,
    panel_title,
    title_pixels,
)
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

PANELS_PER_ROW = 3


@dataclass(frozen=True)
class LayerPanel:
    """One job's layer summaries of the log10 metrics, in any order."""

    title: str
    summaries: Sequence[Summary]


def layers(panels: Sequence[LayerPanel]) -> go.Figure:
    """Lines of medians with a band from the first to the third quartile; all panels share the log axis."""
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
        for metric in COLOURS:
            chosen = sorted((s for s in panel.summaries if s.metric == metric), key=lambda s: s.layer or 0)
            if chosen:
                figure.add_traces(
                    _band_and_line(metric, chosen, legend=index == 0),
                    rows=index // columns + 1,
                    cols=index % columns + 1,
                )
    quartiles = finite(value for panel in panels for s in panel.summaries for value in (s.q25, s.q75, s.median))
    low, high = min([0.0, *quartiles]), max([1.0, *quartiles])
    figure.update_yaxes(**log10_axis(low - 0.1, high + 0.2, ""))
    figure.update_yaxes(title_text="largest / median", col=1)
    layer_count = 1 + max((s.layer or 0 for panel in panels for s in panel.summaries), default=0)
    step = integer_step(layer_count, 32 // columns)
    figure.update_xaxes(showgrid=False, zeroline=False, tick0=0, dtick=step, range=[-0.5, layer_count - 0.5])
    for column in range(1, columns + 1):
        figure.update_xaxes(title_text="layer", row=rows, col=column)
    margin = {"l": 10, "r": 10, "t": top, "b": BELOW}
    lay_out(figure, height=top + area + BELOW, hovermode="x unified", margin=margin)
    return figure.update_layout(legend={"y": 1 + (title_pixels(titles) + 8) / area, "x": 1.0, "xanchor": "right"})


def _band_and_line(metric: str, summaries: Sequence[Summary], legend: bool) -> list[go.Scatter]:
    x = [summary.layer for summary in summaries]
    colour = COLOURS[metric]
    band = go.Scatter(
        x=[*x, *reversed(x)],
        y=[*(s.q75 for s in summaries), *(s.q25 for s in reversed(summaries))],
        mode="lines",
        fill="toself",
        fillcolor=colour,
        opacity=0.18,
        line={"width": 0},
        hoverinfo="skip",
        name=f"{NAMES[metric]}, middle half",
        legendgroup=metric,
        showlegend=False,
    )
    line = go.Scatter(
        x=x,
        y=[s.median for s in summaries],
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 5},
        name=NAMES[metric],
        legendgroup=metric,
        showlegend=legend,
        customdata=[
            f"median {power_of_ten(s.median)}, middle half {power_of_ten(s.q25)} to {power_of_ten(s.q75)}"
            for s in summaries
        ],
        hovertemplate="%{customdata}",
    )
    return [band, line]
