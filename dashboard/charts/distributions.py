"""Figure 1: the distributions of D_a and D_c over queries, one panel per job, from stored histograms."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import COLOURS, NAMES, figure_text, lay_out, log10_axis
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

PANELS_PER_ROW = 2


@dataclass(frozen=True)
class Panel:
    """One job's distributions: ``summaries`` by metric name, log10 metrics only."""

    title: str
    summaries: Mapping[str, Summary]


def distributions(panels: Sequence[Panel]) -> go.Figure:
    """Histograms on a log axis, in percent of the rows that are defined; all panels share both axes."""
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.04,
        vertical_spacing=0.16 / rows if rows > 1 else 0,
        subplot_titles=[figure_text(panel.title) for panel in panels] if len(panels) > 1 else None,
    )
    low, high = shared_range(panels)
    for index, panel in enumerate(panels):
        row, column = index // columns + 1, index % columns + 1
        for metric, summary in panel.summaries.items():
            figure.add_trace(_bars(metric, summary, legend=index == 0), row=row, col=column)
            if summary.median is not None and low <= summary.median <= high:
                figure.add_vline(
                    x=summary.median,
                    line={"color": COLOURS[metric], "dash": "dash", "width": 1.5},
                    annotation={
                        "text": f"median {power_of_ten(summary.median)}",
                        "font": {"color": COLOURS[metric], "size": 12},
                        "yanchor": "top",
                        "xanchor": "left",
                        "xshift": 3,
                    },
                    row=row,
                    col=column,
                )
    figure.update_xaxes(**log10_axis(low, high, ""), showticklabels=True)
    for column in range(1, columns + 1):
        figure.update_xaxes(title_text="largest / median within one query", row=rows, col=column)
    figure.update_yaxes(rangemode="tozero", ticksuffix=" %")
    figure.update_yaxes(title_text="share of rows per bin", col=1)
    return lay_out(figure, height=110 + 250 * rows, barmode="overlay", bargap=0, hovermode="x unified")


def _bars(metric: str, summary: Summary, legend: bool) -> go.Bar:
    edges = summary.bin_edges()
    return go.Bar(
        x=[(left + right) / 2 for left, right in itertools.pairwise(edges)],
        y=summary.shares(),
        width=summary.histogram_width,
        marker={"color": COLOURS[metric], "opacity": 0.62, "line": {"width": 0}},
        name=NAMES[metric],
        legendgroup=metric,
        showlegend=legend,
        customdata=[
            f"{power_of_ten(left)} to {power_of_ten(right)}: {number:,} rows"
            for left, right, number in zip(edges[:-1], edges[1:], summary.histogram, strict=True)
        ],
        hovertemplate="%{customdata} (%{y:.2f} %)",
    )


def shared_range(panels: Sequence[Panel]) -> tuple[float, float]:
    """From 1 or the lowest filled bin to the highest that holds a thousandth of its rows, a little air beside."""
    low, high = 0.0, 1.0
    for panel in panels:
        for summary in panel.summaries.values():
            edges = summary.bin_edges()
            shares = summary.shares()
            filled = [index for index, number in enumerate(summary.histogram) if number]
            visible = [index for index, share in enumerate(shares) if share >= 0.01]
            if filled:
                low = min(low, edges[filled[0]])
            if visible:
                high = max(high, edges[visible[-1] + 1])
    return low - 0.1, high + 0.3
