"""The three-key example, Figure 2 of the article: keys and query update, output and the Jacobian's ellipse."""

import math

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import ADVANTAGE, ATTENTION, BELOW, NEUTRAL, lay_out
from dashboard.examples.three_keys import Array, Picture, ThreeKeys, ellipse

KEY_COLOURS = ("#2f9e6e", "#9a5bc4", "#c2426b")
CORRECTION = "#e0218a"  # what the output should do
_GAP = "\u00a0" * 2  # between a value and its name
ELLIPSE_RADIUS = 0.45  # of its longer axis, as drawn


def three_keys(example: ThreeKeys, picture: Picture) -> go.Figure:
    """Left: the plane of query and keys. Right: the plane of values and output."""
    figure = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.08, subplot_titles=("keys and query", "values and output")
    )
    for index, (key, value) in enumerate(zip(example.keys, example.values, strict=True)):
        weight, advantage = picture.attention[index], picture.advantage[index]
        for column, point, symbol in ((1, key, "circle"), (2, value, "diamond")):
            figure.add_trace(
                go.Scatter(
                    x=[point[0]],
                    y=[point[1]],
                    mode="markers+text",
                    marker={"size": 10 + 34 * math.sqrt(weight), "color": KEY_COLOURS[index], "symbol": symbol},
                    text=[f"k<sub>{index + 1}</sub>" if column == 1 else f"{_GAP}v<sub>{index + 1}</sub>{_GAP}"],
                    textposition=_outwards(point) if column == 1 else _beside(point),
                    name=f"key {index + 1}",
                    hovertemplate=f"attention {weight:.4g}<br>advantage {advantage:.4g}<extra>key {index + 1}</extra>",
                    showlegend=False,
                ),
                row=1,
                col=column,
            )
    factor = magnification(float(np.linalg.norm(picture.update)))
    for index, share in enumerate(picture.contributions):
        _arrow(figure, 1, np.zeros(2), factor * share, KEY_COLOURS[index], width=1.2)
    label = "query update" + (f" × {factor:,.0f}" if factor > 1 else "")
    _arrow(figure, 1, np.zeros(2), factor * picture.update, ATTENTION, text=label)
    _output_plane(figure, example, picture)
    for column, points in ((1, example.keys), (2, np.vstack([example.values, example.target, picture.output]))):
        centre, reach = _frame(np.vstack([points, np.zeros((1, 2))]))
        figure.update_xaxes(range=[centre[0] - reach, centre[0] + reach], row=1, col=column)
        axis = "x" if column == 1 else "x2"
        figure.update_yaxes(
            range=[centre[1] - reach, centre[1] + reach], scaleanchor=axis, scaleratio=1, row=1, col=column
        )
    figure.update_xaxes(zeroline=True, zerolinewidth=1)
    figure.update_yaxes(zeroline=True, zerolinewidth=1)
    return lay_out(figure, height=430, margin={"l": 10, "r": 10, "t": 34, "b": BELOW}, showlegend=False)


def _output_plane(figure: go.Figure, example: ThreeKeys, picture: Picture) -> None:
    around = picture.output + ELLIPSE_RADIUS * ellipse(picture.jacobian)
    figure.add_trace(
        go.Scatter(
            x=around[:, 0],
            y=around[:, 1],
            mode="lines",
            line={"color": ATTENTION, "width": 2},
            fill="toself",
            fillcolor="rgba(59,127,207,0.15)",
            hovertemplate=f"smallest / largest singular value {picture.flatness:.4g}<extra>Jacobian</extra>",
        ),
        row=1,
        col=2,
    )
    weak = ELLIPSE_RADIUS * picture.output_axes[:, -1]
    ends = np.stack([picture.output - weak, picture.output + weak])
    figure.add_trace(
        go.Scatter(
            x=ends[:, 0],
            y=ends[:, 1],
            mode="lines",
            line={"color": NEUTRAL, "dash": "dot", "width": 1.5},
            hovertemplate="weakest direction<extra></extra>",
        ),
        row=1,
        col=2,
    )
    for point, colour, symbol, size, name, place in (
        (picture.output, ADVANTAGE, "circle", 12, "y", "bottom right"),
        (example.target, CORRECTION, "circle-open", 22, "target", "middle right"),  # a value may lie within
    ):
        figure.add_trace(
            go.Scatter(
                x=[point[0]],
                y=[point[1]],
                mode="markers+text",
                marker={"size": size, "color": colour, "symbol": symbol, "line": {"width": 2, "color": colour}},
                text=[name],
                textposition=place,
                hovertemplate="(%{x:.4g}, %{y:.4g})<extra>" + name + "</extra>",
            ),
            row=1,
            col=2,
        )
    # it ends at the ring around the target
    _arrow(figure, 2, picture.output, picture.output - picture.delta, CORRECTION, text="−δ", middle=True, standoff=11)


def _outwards(point: Array) -> str:
    """Where a key's name stands: on the side away from the origin, from which the arrows come."""
    x, y = point
    if abs(y) >= abs(x):
        return "top center" if y > 0 else "bottom center"
    return "middle right" if x > 0 else "middle left"


def _beside(point: Array) -> str:
    """Where a value's name stands: left or right of it; the target's and the arrow's stand right of theirs."""
    return "middle right" if point[0] > 0 else "middle left"


def magnification(length: float) -> float:
    """The power of ten that makes an arrow of this length at least a tenth long; 1 for one of no length."""
    return 10.0 ** max(0, math.ceil(-math.log10(length) - 1)) if length > 0 else 1.0


def _arrow(
    figure: go.Figure,
    column: int,
    start: Array,
    end: Array,
    colour: str,
    *,
    width: float = 3,
    text: str = "",
    middle: bool = False,
    standoff: float = 0,
) -> None:
    """Its name stands beside its tip, or beside its middle; it ends ``standoff`` pixels before ``end``."""
    if np.allclose(start, end):
        return
    axis = "" if column == 1 else "2"
    figure.add_annotation(
        x=end[0],
        y=end[1],
        ax=start[0],
        ay=start[1],
        xref=f"x{axis}",
        yref=f"y{axis}",
        axref=f"x{axis}",
        ayref=f"y{axis}",
        arrowcolor=colour,
        arrowwidth=width,
        arrowhead=2,
        showarrow=True,
        standoff=standoff,
        text="",
    )
    if text:
        place = (start + end) / 2 if middle else end
        right = end[0] >= start[0]
        figure.add_annotation(
            x=place[0],
            y=place[1],
            xref=f"x{axis}",
            yref=f"y{axis}",
            text=text,
            showarrow=False,
            xanchor="left" if right else "right",
            xshift=8 if right else -8,
            font={"color": colour},
        )


def _frame(points: Array) -> tuple[Array, float]:
    """Centre and half width of a square around the points."""
    low, high = points.min(0), points.max(0)
    return (low + high) / 2, 0.5 * float((high - low).max()) + 0.6
