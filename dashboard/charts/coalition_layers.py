"""Layer by layer: how often the heads agree on a key, and how far down their attention such keys are."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.attention_ranks import COLOURS
from dashboard.charts.look import BELOW, figure_text, finite, integer_step, lay_out, log10_axis
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

SHARE_METRIC, RANK_METRIC = "abstains", "log10_attention_rank"


@dataclass(frozen=True)
class CoalitionLayers:
    """One job's layer summaries of ``abstains`` and ``log10_attention_rank``, in any order."""

    title: str
    summaries: Sequence[Summary]


def coalition_layers(jobs: Sequence[CoalitionLayers], selected: int | None = None) -> go.Figure:
    """Above, the share of queries with a qualifying key; below, the ranks: a point at the median, a bar over the
    middle half. Bars above can be clicked and carry their layer; ``selected`` is framed."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.5, 0.5])
    highest = [1.0]
    count = 1 + max((s.layer or 0 for job in jobs for s in job.summaries), default=0)
    for index, job in enumerate(jobs):
        colour = COLOURS[index % len(COLOURS)]
        name = figure_text(job.title, 100)
        ordered = sorted(job.summaries, key=lambda s: s.layer or 0)
        abstains = [s for s in ordered if s.metric == SHARE_METRIC and s.mean is not None]
        figure.add_trace(
            go.Bar(
                x=[s.layer for s in abstains],
                y=[100 * (1 - (s.mean or 0.0)) for s in abstains],
                marker={"color": colour, "line": {"width": 0}},
                selected={"marker": {"opacity": 1}},
                unselected={"marker": {"opacity": 1}},
                name=name,
                legendgroup=str(index),
                customdata=[s.layer for s in abstains],
                hovertemplate="layer %{x}: %{y:.1f} % of the queries<extra></extra>",
            ),
            row=1,
            col=1,
        )
        ranks = [s for s in ordered if s.metric == RANK_METRIC and s.median is not None]
        low, middle, high = ([getattr(s, place) or 0.0 for s in ranks] for place in ("q25", "median", "q75"))
        highest += finite(high)
        # side by side, as the bars are
        shift = (index - (len(jobs) - 1) / 2) * 0.8 / len(jobs)
        figure.add_trace(
            go.Scatter(
                x=[(s.layer or 0) + shift for s in ranks],
                y=middle,
                mode="markers",
                marker={"color": colour, "size": 7},
                error_y={
                    "symmetric": False,
                    "array": [top - at for top, at in zip(high, middle, strict=True)],
                    "arrayminus": [at - bottom for at, bottom in zip(middle, low, strict=True)],
                    "width": 0,
                    "thickness": 2,
                },
                name=name,
                legendgroup=str(index),
                showlegend=False,
                customdata=[
                    f"layer {s.layer}, {s.n:,} keys: median rank {power_of_ten(s.median)}, middle half "
                    f"{power_of_ten(s.q25)} to {power_of_ten(s.q75)}"
                    for s in ranks
                ],
                hovertemplate="%{customdata}<extra></extra>",
            ),
            row=2,
            col=1,
        )
    if selected is not None and selected < count:
        figure.add_vrect(
            x0=selected - 0.5, x1=selected + 0.5, line={"color": "#e0218a", "width": 2}, fillcolor="rgba(0,0,0,0)"
        )
    figure.update_xaxes(range=[-0.6, count - 0.4], tick0=0, dtick=integer_step(count, 32), showgrid=False)
    figure.update_xaxes(title_text="layer", row=2, col=1)
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero", nticks=5, title_text="with a coalition", row=1, col=1)
    figure.update_layout(yaxis2=log10_axis(-0.05, max(highest) + 0.15, "attention rank"))
    several = len(jobs) > 1
    top = 16 + 20 * len(jobs) * several
    margin = {"l": 10, "r": 10, "t": top, "b": BELOW}
    lay_out(figure, height=360 + top + BELOW, margin=margin, barmode="group", clickmode="event+select")
    return figure.update_layout(showlegend=several, legend={"orientation": "v"})
