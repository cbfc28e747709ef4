"""Both factors of σ layer by layer, each on its own axis, and the σ that was measured; one colour per job."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import BELOW, figure_text, finite, integer_step, lay_out, log10_axis
from dashboard.charts.metric_histograms import JOB_COLOURS
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

PANELS = {  # by metric, of decimal logarithms
    "log10_weight_norm": "weights: ‖W<sub>K</sub> W<sub>Q</sub><sup>T</sup>‖<sub>2</sub>",
    "log10_input_norm": "inputs: ‖X X<sup>T</sup>‖<sub>2</sub>",
    "log10_sigma": "measured σ of the scores",
}
SMALLEST_SPAN = 1.0  # decades


def sigma_factors(summaries: Sequence[Summary], names: Mapping[int, str]) -> go.Figure:
    """Medians over heads and sequences, with a band from the least to the largest head."""
    figure = make_subplots(rows=1, cols=len(PANELS), subplot_titles=list(PANELS.values()), horizontal_spacing=0.06)
    for column, metric in enumerate(PANELS, start=1):
        values = []
        for index, (job_id, name) in enumerate(names.items()):
            found = sorted(
                (s for s in summaries if s.job_id == job_id and s.metric == metric and s.median is not None),
                key=lambda s: s.layer or 0,
            )
            values += finite(value for s in found for value in (s.minimum, s.maximum))
            figure.add_traces(_band_and_line(found, index, name, legend=column == 1), rows=1, cols=column)
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        lacking = max(0.0, SMALLEST_SPAN - (high - low)) / 2
        figure.update_yaxes(**log10_axis(low - lacking - 0.1, high + lacking + 0.1, ""), col=column)
    layers = 1 + max((s.layer or 0 for s in summaries), default=0)
    figure.update_xaxes(title_text="layer", showgrid=False, zeroline=False, tick0=0, dtick=integer_step(layers, 11))
    figure.update_xaxes(range=[-0.5, layers - 0.5])
    figure.update_xaxes(range=[-0.5, layers - 0.5])
    several = len(names) > 1
    top = 36 + 20 * len(names) * several
    lay_out(figure, height=240 + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW}, hovermode="x unified")
    return figure.update_layout(
        showlegend=several, legend={"orientation": "v", "y": 1 + 34 / 240, "yanchor": "bottom", "x": 0}
    )


def _band_and_line(found: Sequence[Summary], index: int, name: str, *, legend: bool) -> list[go.Scatter]:
    colour = JOB_COLOURS[index % len(JOB_COLOURS)]
    layers = [s.layer for s in found]
    band = go.Scatter(
        x=[*layers, *reversed(layers)],
        y=[*(s.maximum for s in found), *(s.minimum for s in reversed(found))],
        mode="lines",
        fill="toself",
        fillcolor=colour,
        opacity=0.15,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    line = go.Scatter(
        x=layers,
        y=[s.median for s in found],
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 5},
        name=figure_text(name, 100),
        legendgroup=str(index),
        showlegend=legend,
        customdata=[
            f"{power_of_ten(s.median)} ({power_of_ten(s.minimum)} to {power_of_ten(s.maximum)})" for s in found
        ],
        hovertemplate="%{customdata}",
    )
    return [band, line]
