"""A number of every layer by step: a map, layers from top to bottom, or a line for each layer."""

from collections.abc import Callable, Sequence
from typing import Protocol

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from dashboard.charts.curves import Curve, curves
from dashboard.charts.look import ATTENTION_SCALE, BELOW, integer_step, lay_out

_ROW = 26  # pixels


class Cell(Protocol):
    @property
    def layer(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def value(self) -> float: ...


def layer_map(cells: Sequence[Cell], label: str, words: Callable[[float | None], str]) -> go.Figure:
    """Steps are placed one after the other, whatever lies between them."""
    steps = sorted({cell.step for cell in cells})
    layers = sorted({cell.layer for cell in cells})
    column, row = {step: i for i, step in enumerate(steps)}, {layer: i for i, layer in enumerate(layers)}
    values: list[list[float | None]] = [[None] * len(steps) for _ in layers]
    for cell in cells:
        values[row[cell.layer]][column[cell.step]] = cell.value
    texts = [
        [f"layer {layer}, step {step:,}<br>{label}: {words(values[row[layer]][column[step]])}" for step in steps]
        for layer in layers
    ]
    figure = go.Figure(
        go.Heatmap(
            z=values,
            text=texts,
            hovertemplate="%{text}<extra></extra>",
            colorscale=ATTENTION_SCALE,
            colorbar={"title": {"text": label, "side": "right"}, "thickness": 12, "outlinewidth": 0},
            ygap=1,
        )
    )
    every = integer_step(len(steps), 12)
    figure.update_xaxes(
        title_text="step",
        tickmode="array",
        tickvals=list(range(0, len(steps), every)),
        ticktext=[f"{step:,}" for step in steps[::every]],
        showgrid=False,
        zeroline=False,
    )
    figure.update_yaxes(
        title_text="layer",
        tickmode="array",
        tickvals=list(range(0, len(layers), integer_step(len(layers), 24))),
        ticktext=[str(layer) for layer in layers[:: integer_step(len(layers), 24)]],
        range=[len(layers) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    height = max(200, _ROW * len(layers)) + 16 + BELOW
    return lay_out(figure, height=height, margin={"l": 10, "r": 10, "t": 16, "b": BELOW})


def layer_lines(
    cells: Sequence[Cell], label: str, words: Callable[[float | None], str], *, logarithmic: bool = False
) -> go.Figure:
    """Light lines are early layers, dark ones late."""
    layers = sorted({cell.layer for cell in cells})
    lines = []
    for place, layer in enumerate(layers):
        of_layer = [cell for cell in cells if cell.layer == layer]
        share = 0.3 + 0.7 * (place / (len(layers) - 1) if len(layers) > 1 else 1)
        colour = str(sample_colorscale(ATTENTION_SCALE, share)[0])
        lines.append(Curve(f"layer {layer}", [c.step for c in of_layer], [c.value for c in of_layer], 0, colour=colour))
    return curves(lines, x_title="step", y_title=label, words=words, logarithmic=logarithmic, height=380)
