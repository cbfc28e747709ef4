"""What a step does to sources of different attention weight: shares that gain, and their mean gain, by band."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import BELOW, NEUTRAL, figure_text, lay_out
from dashboard.charts.metric_histograms import JOB_COLOURS
from dashboard.formats import count, percent

LABELS = ("0.1 to 1", "0.01 to 0.1", "10⁻³ to 0.01", "10⁻⁴ to 10⁻³", "below 10⁻⁴")


@dataclass(frozen=True)
class Band:
    """One band of one job, the largest weights first; None where there are no sources."""

    job_id: int
    band: int
    sources: int | None
    gain_positive: float | None
    step_positive: float | None
    gain: float | None


def ratchet_bands(bands: Sequence[Band], names: Mapping[int, str]) -> go.Figure:
    """Left: shares of sources whose advantage (full lines) and whose score (dotted) grows. Right: mean gain."""
    figure = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.1,
        subplot_titles=("share of sources that gain", "mean gain of advantage"),
    )
    for index, (job_id, name) in enumerate(names.items()):
        mine = sorted((band for band in bands if band.job_id == job_id), key=lambda band: -band.band)
        colour, label = JOB_COLOURS[index % len(JOB_COLOURS)], figure_text(name, 100)
        for column, dash, values, what in (
            (1, "solid", [band.gain_positive for band in mine], "advantage"),
            (1, "dot", [band.step_positive for band in mine], "score"),
            (2, "solid", [band.gain for band in mine], "mean gain"),
        ):
            figure.add_trace(
                go.Scatter(
                    x=[LABELS[band.band] for band in mine],
                    y=values,
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2},
                    name=f"{what}, {label}" if len(names) > 1 else what,
                    legendgroup=label,
                    showlegend=column == 1,
                    customdata=[f"{count(band.sources)} sources" for band in mine],
                    text=[percent(value) if column == 1 else _gain(value) for value in values],
                    hovertemplate="%{text} (%{customdata})",
                ),
                row=1,
                col=column,
            )
    line = {"color": NEUTRAL, "dash": "dash", "width": 1}
    figure.add_hline(y=0.5, line=line, row=1, col=1)
    figure.add_hline(y=0, line=line, row=1, col=2)
    figure.update_xaxes(title_text="attention weight of the source", categoryarray=LABELS[::-1], showgrid=False)
    figure.update_yaxes(tickformat=".0%", range=[0, 1], row=1, col=1)
    figure.update_yaxes(zeroline=False, row=1, col=2)
    top = 36 + 20 * 2 * len(names) * (len(names) > 1) + 20 * (len(names) == 1)
    lay_out(figure, height=240 + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW}, hovermode="x")
    orientation = "h" if len(names) == 1 else "v"
    return figure.update_layout(legend={"orientation": orientation, "y": 1.1, "yanchor": "bottom"})


def _gain(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}"
