"""Distances of checkpoints from each other: one cell for every two, in the order of runs and steps."""

from collections.abc import Sequence

import plotly.graph_objects as go

from dashboard.charts.look import ATTENTION_SCALE, NEUTRAL, figure_text, integer_step, lay_out
from dashboard.stability import Checkpoint, Distances, between, words

_CELL = 26  # pixels
_MOST_LABELS = 40


def distance_matrix(
    checkpoints: Sequence[Checkpoint], distances: Distances, label: str, selected: tuple[int, int]
) -> go.Figure:
    """Symmetric; lines part the runs, the pair of numbers ``selected`` is framed, and cells can be clicked.

    Markers that nobody sees lie over the cells and carry the numbers of both checkpoints as custom data.
    """
    count = len(checkpoints)
    places = {each.number: place for place, each in enumerate(checkpoints)}
    values = [[between(distances, a.number, b.number) for b in checkpoints] for a in checkpoints]
    largest = max((value for row in values for value in row), default=0.0) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=values,
            colorscale=ATTENTION_SCALE,
            zmin=0,
            zmax=largest,
            xgap=1,
            ygap=1,
            hoverinfo="skip",
            colorbar={"title": {"text": label, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        )
    )
    figure.add_trace(_targets(checkpoints, values, label))
    for place in range(1, count):
        if checkpoints[place].run != checkpoints[place - 1].run:
            line = {"color": NEUTRAL, "width": 1.5}
            figure.add_vline(x=place - 0.5, line=line).add_hline(y=place - 0.5, line=line)
    if all(number in places for number in selected):
        for a, b in (selected, selected[::-1]):
            x, y = places[a], places[b]
            line = {"color": "#e0218a", "width": 2.5}
            figure.add_shape(type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line=line)
    step = integer_step(count, _MOST_LABELS)
    ticks = list(range(0, count, step))
    axis = {
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [checkpoint_label(checkpoints[place]) for place in ticks],
        "showgrid": False,
        "zeroline": False,
        "constrain": "domain",
    }
    figure.update_xaxes(**axis, range=[-0.5, count - 0.5], tickangle=-45)
    figure.update_yaxes(**axis, range=[count - 0.5, -0.5], scaleanchor="x")
    height = max(420, min(900, _CELL * count + 150))
    return lay_out(figure, height=height, clickmode="event+select", showlegend=False)


def checkpoint_label(checkpoint: Checkpoint) -> str:
    """Run and step, safe for plotly."""
    return f"{figure_text(checkpoint.run, 18)}, step {checkpoint.step:,}"


def _targets(checkpoints: Sequence[Checkpoint], values: Sequence[Sequence[float]], label: str) -> go.Scatter:
    names = [checkpoint_label(each) for each in checkpoints]
    cells = [(x, y) for y in range(len(checkpoints)) for x in range(len(checkpoints))]
    return go.Scatter(
        x=[x for x, _ in cells],
        y=[y for _, y in cells],
        mode="markers",
        marker={"symbol": "square", "size": 14, "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=[[checkpoints[x].number, checkpoints[y].number] for x, y in cells],
        text=[f"{names[y]}<br>{names[x]}<br>{label}: {words(values[y][x])}" for x, y in cells],
        hovertemplate="%{text}<extra></extra>",
    )
