"""Playback of the credit loop: weights and credit of the sources at one step, and their course over all steps.

The credit shown is attention × advantage, which a step on the scores adds (times η_s): the advantages themselves grow
without end where their source no longer gets attention.
"""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import BELOW, NEUTRAL, lay_out
from dashboard.charts.metric_histograms import JOB_COLOURS
from dashboard.examples.credit_loop import Trajectory

MOST_FRAMES = 100
FRAME_MS = 90


def credit_loop(course: Trajectory, step: int) -> go.Figure:
    """Bars of one step on the left, lines over the steps on the right; the figure plays from there by itself."""
    steps, sources = course.attention.shape
    colours = [JOB_COLOURS[source % len(JOB_COLOURS)] for source in range(sources)]
    names = [f"source {source + 1}" for source in range(sources)]
    figure = make_subplots(
        rows=2,
        cols=2,
        column_widths=[0.3, 0.7],
        horizontal_spacing=0.09,
        vertical_spacing=0.16,
        subplot_titles=(
            "attention weight",
            "attention weight by step",
            "attention × advantage",
            "log odds to the rest by step",
        ),
    )
    places = [(1, 1), (2, 1), (1, 2), (2, 2)]
    for trace, (row, col) in zip(_moving(course, step, names, colours), places, strict=True):
        figure.add_trace(trace, row=row, col=col)
    for source, (name, colour) in enumerate(zip(names, colours, strict=True)):
        for row, values in ((1, course.attention[:, source]), (2, course.log_odds_to_rest(source))):
            figure.add_trace(
                go.Scatter(
                    x=np.arange(steps),
                    y=values,
                    mode="lines",
                    line={"color": colour, "width": 2},
                    name=name,
                    legendgroup=name,
                    showlegend=row == 1,
                ),
                row=row,
                col=2,
            )
    shown = sorted({*range(0, steps, max(1, -(-steps // MOST_FRAMES))), steps - 1})
    figure.frames = [
        go.Frame(data=_moving(course, at, names, colours), traces=[0, 1, 2, 3], name=str(at)) for at in shown
    ]
    figure.update_yaxes(range=[0, 1.02], row=1)
    credit = course.attention * course.advantage
    low, high = float(credit.min()), float(credit.max())
    edge = 0.08 * (high - low) or 0.1
    figure.update_yaxes(range=[min(low, 0) - edge, max(high, 0) + edge], row=2, col=1)
    figure.update_xaxes(title_text="step", row=2, col=2)
    figure.update_xaxes(range=[0, max(steps - 1, 1)], col=2)
    from_here = [str(at) for at in shown if at >= step] if step < steps - 1 else [str(at) for at in shown]
    lay_out(
        figure,
        height=520,
        margin={"l": 10, "r": 10, "t": 70, "b": BELOW},
        hovermode="x unified",
        updatemenus=[_buttons(from_here)],
    )
    return figure.update_layout(legend={"y": 1.09, "x": 1.0, "xanchor": "right"})


def _moving(course: Trajectory, step: int, names: list[str], colours: list[str]) -> list[go.Bar | go.Scatter]:
    """What differs from frame to frame: two rows of bars, and a mark of the step in each panel of lines."""
    weights = course.attention[step]
    credit = weights * course.advantage[step]
    odds = [float(course.log_odds_to_rest(source)[step]) for source in range(len(names))]
    mark = {"mode": "markers", "showlegend": False, "hoverinfo": "skip"}
    dots = {"color": colours, "size": 9, "line": {"color": NEUTRAL, "width": 1}}
    return [
        go.Bar(x=names, y=weights, marker={"color": colours}, showlegend=False, hovertemplate="%{y:.4f}"),
        go.Bar(x=names, y=credit, marker={"color": colours}, showlegend=False, hovertemplate="%{y:.4f}"),
        go.Scatter(x=[step] * len(names), y=weights, marker=dots, **mark),
        go.Scatter(x=[step] * len(names), y=odds, marker=dots, **mark),
    ]


def _buttons(frames: list[str]) -> dict[str, object]:
    play = {"frame": {"duration": FRAME_MS, "redraw": True}, "transition": {"duration": 0}, "fromcurrent": False}
    stop = {"frame": {"duration": 0, "redraw": False}, "mode": "immediate", "transition": {"duration": 0}}
    return {
        "type": "buttons",
        "direction": "left",
        "showactive": False,
        "x": 0.0,
        "xanchor": "left",
        "y": 1.1,
        "yanchor": "bottom",
        "pad": {"r": 6, "t": 0},
        "buttons": [
            {"label": "▶ Play", "method": "animate", "args": [frames, play]},
            {"label": "❚❚ Pause", "method": "animate", "args": [[None], stop]},
        ],
    }
