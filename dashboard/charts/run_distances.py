"""Figure 4 as curves: the distance of each checkpoint from the end of its run, against that of the ends of runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from dashboard.charts.look import ADVANTAGE, ATTENTION_SCALE, figure_text, integer_step, lay_out
from dashboard.stability import Stability, words

_RUNS = ("#3b7fcf", "#2a9d8f", "#8e6bbf", "#c2477f", "#7a8c2e", "#5c6f82", "#b0803a", "#3a9ec2")
_BAND = "rgba(217,112,43,0.18)"  # the colour of ADVANTAGE
_MOST_TICKS = 14
_MOST_STEPS = 6  # lines of the chart by layer


def by_step(found: Stability, label: str) -> go.Figure:
    """One line per run down to 0 at its end; the band spans the distances of the ends of every two runs.

    Steps are placed by log10(1 + step): most of what happens, happens early.
    """
    figure = go.Figure()
    runs = dict.fromkeys(each.checkpoint.run for each in found.to_end)
    for number, run in enumerate(runs):
        line = [each for each in found.to_end if each.checkpoint.run == run]
        steps = [*(each.checkpoint.step for each in line), line[-1].end.step]
        distances = [*(each.distance for each in line), 0.0]
        figure.add_scatter(
            x=[_place(step) for step in steps],
            y=distances,
            mode="lines+markers",
            name=figure_text(run if run.startswith("run") else f"run {run}", 28),
            line={"color": _RUNS[number % len(_RUNS)], "width": 2},
            text=[f"step {step:,}: {words(value)}" for step, value in zip(steps, distances, strict=True)],
            hovertemplate="%{text}<extra>%{fullData.name}</extra>",
        )
    if found.between_ends:
        low, high, mean = min(found.between_ends), max(found.between_ends), fmean(found.between_ends)
        if high > low:
            figure.add_hrect(y0=low, y1=high, fillcolor=_BAND, line_width=0, layer="below")
        figure.add_hline(
            y=mean,
            line={"color": ADVANTAGE, "dash": "dot", "width": 2},
            annotation={
                "text": f"<b>between the ends of runs: {words(mean)}</b>",
                "font": {"color": ADVANTAGE},
                "xanchor": "right",
                "yanchor": "bottom",
            },
        )
    steps = sorted({each.checkpoint.step for each in found.to_end} | {each.end.step for each in found.to_end})
    steps = steps[:: integer_step(len(steps), _MOST_TICKS)]
    figure.update_xaxes(
        title_text="step",
        tickmode="array",
        tickvals=[_place(step) for step in steps],
        ticktext=[f"{step:,}" for step in steps],
        zeroline=False,
    )
    figure.update_yaxes(title_text=f"{label} from the run's end", rangemode="tozero")
    margin = {"l": 10, "r": 10, "t": 40, "b": 48}
    return lay_out(figure, height=340, margin=margin)


def _place(step: int) -> float:
    return math.log10(1 + step)


@dataclass(frozen=True)
class LayerStability:
    layer: int
    found: Stability


def by_layer(layers: Sequence[LayerStability], label: str) -> go.Figure:
    """For every layer the distance from the run's end at a few steps, mean over runs, and the band of the ends."""
    figure = go.Figure()
    places = [each.layer for each in layers]
    ends = [each.found.between_ends for each in layers]
    if all(ends):
        edges = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=places, y=[max(each) for each in ends], **edges)
        figure.add_scatter(x=places, y=[min(each) for each in ends], fill="tonexty", fillcolor=_BAND, **edges)
        figure.add_scatter(
            x=places,
            y=[fmean(each) for each in ends],
            name="between the ends of runs",
            line={"color": ADVANTAGE, "dash": "dot", "width": 2},
            text=[f"{words(min(each))} to {words(max(each))}" for each in ends],
            hovertemplate="%{text}",
        )
    steps = shown_steps(layers[0].found) if layers else []
    for number, step in enumerate(steps):
        share = (number + 1) / len(steps)
        values = [fmean(e.distance for e in each.found.to_end if e.checkpoint.step == step) for each in layers]
        figure.add_scatter(
            x=places,
            y=values,
            name=f"step {step:,}",
            line={"color": sample_colorscale(ATTENTION_SCALE, 0.25 + 0.75 * share)[0], "width": 2},
            text=[words(value) for value in values],
            hovertemplate="%{text}",
        )
    figure.update_xaxes(title_text="layer", showgrid=False, zeroline=False)
    figure.update_xaxes(tick0=0, dtick=integer_step(len(places), 32))
    if places:
        figure.update_xaxes(range=[min(places) - 0.5, max(places) + 0.5])
    figure.update_yaxes(title_text=label, rangemode="tozero")
    margin = {"l": 10, "r": 10, "t": 60, "b": 48}
    return lay_out(figure, height=360, hovermode="x unified", margin=margin)


def shown_steps(found: Stability) -> list[int]:
    """At most some steps before the ends of runs, the first and the last of them included."""
    steps = sorted({each.checkpoint.step for each in found.to_end})
    if len(steps) <= _MOST_STEPS:
        return steps
    return [steps[round(place * (len(steps) - 1) / (_MOST_STEPS - 1))] for place in range(_MOST_STEPS)]
