"""How far down the heads' attention certain keys are: distributions of attention ranks on a logarithmic axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import plotly.graph_objects as go

from dashboard.charts.look import ATTENTION, BELOW, figure_text, lay_out, log10_axis
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

COLOURS = (ATTENTION, "#d9702b", "#2f9e6e", "#9a5bc4", "#c2426b", "#a08a1f")


@dataclass(frozen=True)
class RankLine:
    """One job's summary of log10 attention ranks."""

    title: str
    summary: Summary


def attention_ranks(lines: Sequence[RankLine], title: str) -> go.Figure:
    """Share of the keys by attention rank, a step line per job with its median."""
    figure = go.Figure()
    highest = 1.0
    for index, line in enumerate(lines):
        summary, colour = line.summary, COLOURS[index % len(COLOURS)]
        edges, shares = summary.bin_edges(), summary.shares()
        highest = max([highest, *(right for right, share in zip(edges[1:], shares, strict=True) if share)])
        figure.add_trace(
            go.Scatter(
                x=edges,
                y=[*shares, 0],
                mode="lines",
                line={"shape": "hv", "width": 1.8, "color": colour},
                fill="tozeroy" if len(lines) == 1 else None,
                name=figure_text(line.title, 100),
                customdata=[
                    f"rank {power_of_ten(left)} to {power_of_ten(right)}: {number:,} keys"
                    for (left, right), number in zip(pairwise(edges), summary.histogram, strict=True)
                ]
                + [""],
                hovertemplate="%{customdata} (%{y:.1f} %)",
            )
        )
        if summary.median is not None:
            figure.add_vline(
                x=summary.median,
                line={"color": colour, "dash": "dot", "width": 1.5},
                annotation={
                    "text": f"median {power_of_ten(summary.median)}",
                    "font": {"color": colour},
                    "yanchor": "top",
                    "yshift": -16 * index,
                    "xanchor": "left",
                },
            )
    figure.update_layout(xaxis=log10_axis(0, highest + 0.05, title))
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero", nticks=5)
    several = len(lines) > 1
    top = 16 + 20 * len(lines) * several
    lay_out(figure, height=240 + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(showlegend=several, legend={"orientation": "v"})
