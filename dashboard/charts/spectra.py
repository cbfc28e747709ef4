"""Figure 3: distributions of the effective ranks of queries, and mean relative spectra of their Jacobians.

One curve per head and job: heads have colours, jobs have dashes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import BELOW, figure_text, lay_out, log10_axis
from dashboard.charts.metric_histograms import JOB_COLOURS, shared_range
from dashboard.queries.jacobian_spectrum import Mode
from dashboard.summaries import Summary

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MOST_BANDS = 6  # more of them hide each other
LOWEST = -5.0  # log10 of σ/σ_max at the lower end of the axis, unless all curves end above
_HEIGHT = 330


@dataclass(frozen=True)
class Curve:
    """One head of one job: ``colour`` and ``dash`` are numbers of the head and of the job."""

    name: str
    colour: int
    dash: int
    ranks: Summary | None
    modes: Sequence[Mode]

    @property
    def line(self) -> dict[str, object]:
        colour, dash = JOB_COLOURS[self.colour % len(JOB_COLOURS)], DASHES[self.dash % len(DASHES)]
        return {"color": colour, "dash": dash, "width": 2}


def spectra(curves: Sequence[Curve]) -> go.Figure:
    """Left: share of queries by effective rank of σ². Right: σ_r/σ_max, its mean and the band from 5 % to 95 %."""
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.08, column_widths=[0.45, 0.55])
    for curve in curves:
        if curve.ranks is not None:
            figure.add_trace(_ranks(curve, curve.ranks), row=1, col=1)
        if len(curves) <= MOST_BANDS and curve.modes:
            figure.add_trace(_band(curve), row=1, col=2)
        figure.add_trace(_mean(curve), row=1, col=2)
    low, high = shared_range([curve.ranks for curve in curves if curve.ranks is not None])
    figure.update_xaxes(title_text="effective rank of a query (σ²)", range=[min(low, 1.0), high], row=1, col=1)
    figure.update_yaxes(title_text="queries", ticksuffix=" %", rangemode="tozero", nticks=5, row=1, col=1)
    figure.update_xaxes(title_text="mode r", row=1, col=2)
    lowest = min([-1.0, *(_log10(mode.mean) for curve in curves for mode in curve.modes)])
    axis = log10_axis(max(LOWEST, lowest - 0.2), 0.1, "σ<sub>r</sub> / σ<sub>max</sub>")
    figure.update_yaxes(axis, row=1, col=2)
    figure.update_xaxes(zeroline=False)
    top = 16 + 20 * len(curves)
    lay_out(figure, height=top + _HEIGHT + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(legend={"orientation": "v"}, hovermode="closest")


def _ranks(curve: Curve, summary: Summary) -> go.Scatter:
    edges, shares = summary.bin_edges(), summary.shares()
    return go.Scatter(
        x=edges,
        y=[*shares, shares[-1]],  # a step begins at its bin's lower edge; the last one is drawn to its end
        mode="lines",
        line={**curve.line, "shape": "hv"},
        name=figure_text(curve.name, 110),
        legendgroup=curve.name,
        hovertemplate="from rank %{x:.3g}: %{y:.2f} %",
    )


def _mean(curve: Curve) -> go.Scatter:
    return go.Scatter(
        x=[1 + mode.mode for mode in curve.modes],
        y=[_log10(mode.mean) for mode in curve.modes],
        mode="lines",
        line=curve.line,
        name=figure_text(curve.name, 110),
        legendgroup=curve.name,
        showlegend=curve.ranks is None,
        customdata=[f"{mode.mean:.2g} (5 % {mode.q05:.2g}, 95 % {mode.q95:.2g})" for mode in curve.modes],
        hovertemplate="mode %{x}: %{customdata}",
    )


def _band(curve: Curve) -> go.Scatter:
    there, back = list(curve.modes), list(reversed(curve.modes))
    return go.Scatter(
        x=[1 + mode.mode for mode in [*there, *back]],
        y=[*(_log10(mode.q95) for mode in there), *(_log10(mode.q05) for mode in back)],
        mode="lines",
        fill="toself",
        fillcolor=curve.line["color"],
        opacity=0.15,
        line={"width": 0},
        hoverinfo="skip",
        legendgroup=curve.name,
        showlegend=False,
    )


def _log10(value: float) -> float:
    """Within what float64 resolves of a squared spectrum: 0 becomes the lower end."""
    return math.log10(max(value, 1e-8))
