"""Median of one metric layer by layer with the band of its middle half, one line per job."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboard.charts.look import BELOW, figure_text, integer_step, lay_out
from dashboard.charts.metric_histograms import JOB_COLOURS
from dashboard.summaries import Summary


def median_layers(summaries: Sequence[Summary], names: Mapping[int, str], label: str, height: int = 240) -> go.Figure:
    """Layer summaries of one metric, in any order; jobs in the order of ``names``."""
    figure = go.Figure()
    for index, (job_id, name) in enumerate(names.items()):
        chosen = sorted((s for s in summaries if s.job_id == job_id), key=lambda s: s.layer or 0)
        colour = JOB_COLOURS[index % len(JOB_COLOURS)]
        x = [summary.layer for summary in chosen]
        figure.add_trace(
            go.Scatter(
                x=[*x, *reversed(x)],
                y=[*(s.q75 for s in chosen), *(s.q25 for s in reversed(chosen))],
                mode="lines",
                fill="toself",
                fillcolor=colour,
                opacity=0.16,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                legendgroup=str(job_id),
            )
        )
        figure.add_trace(
            go.Scatter(
                x=x,
                y=[s.median for s in chosen],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 5},
                name=figure_text(name, 100),
                legendgroup=str(job_id),
                customdata=[
                    "no row is defined"
                    if s.median is None
                    else f"median {s.median:.3g}, middle half {s.q25:.3g} to {s.q75:.3g}"
                    for s in chosen
                ],
                hovertemplate="%{customdata}",
            )
        )
    layers = 1 + max((summary.layer or 0 for summary in summaries), default=0)
    figure.update_xaxes(title_text="layer", showgrid=False, zeroline=False, tick0=0, dtick=integer_step(layers, 32))
    figure.update_xaxes(range=[-0.5, layers - 0.5])
    figure.update_yaxes(title_text=label, rangemode="tozero")
    several = len(names) > 1
    top = 16 + 20 * len(names) * several
    lay_out(figure, height=height + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(showlegend=several, hovermode="x unified", legend={"orientation": "v"})
