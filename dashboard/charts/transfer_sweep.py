"""One attention-transfer sweep: hard and soft loss along c, above the weights of the two anchors."""

from collections.abc import Sequence
from typing import Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import ADVANTAGE, ATTENTION, BELOW, NEUTRAL, figure_text, lay_out

HARD, SOFT = ADVANTAGE, ATTENTION
FIRST_KEY, SECOND_KEY = "#2f9e6e", "#c2426b"


class Point(Protocol):
    @property
    def c(self) -> float: ...
    @property
    def hard_loss_nats(self) -> float: ...
    @property
    def soft_loss_nats(self) -> float: ...
    @property
    def first_weight(self) -> float: ...
    @property
    def second_weight(self) -> float: ...


def transfer_sweep(points: Sequence[Point], first: str, second: str) -> go.Figure:
    """``points`` in the order of c, one of them at 0; ``first`` and ``second`` are the anchors' texts."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.66, 0.34], vertical_spacing=0.07)
    c = [point.c for point in points]
    for name, colour, losses in (
        ("hard loss, observed token", HARD, [point.hard_loss_nats for point in points]),
        ("soft loss, teacher's tokens", SOFT, [point.soft_loss_nats for point in points]),
    ):
        at_zero = losses[min(range(len(c)), key=lambda place: abs(c[place]))]
        figure.add_trace(
            go.Scatter(
                x=c,
                y=[loss - at_zero for loss in losses],
                mode="lines+markers",
                line={"color": colour, "width": 2.2},
                marker={"size": 6},
                name=name,
                customdata=losses,
                hovertemplate="%{y:+.4f} nats (loss %{customdata:.4f})",
            ),
            row=1,
            col=1,
        )
    for name, colour, weights in (
        (f"+c: {first}", FIRST_KEY, [point.first_weight for point in points]),
        (f"−c: {second}", SECOND_KEY, [point.second_weight for point in points]),
    ):
        figure.add_trace(
            go.Scatter(
                x=c,
                y=weights,
                mode="lines",
                line={"color": colour, "width": 2},
                name=figure_text(name, 60),
                hovertemplate="%{y:.3f}",
            ),
            row=2,
            col=1,
        )
    figure.add_vline(x=0, line={"color": NEUTRAL, "dash": "dot", "width": 1})
    figure.update_xaxes(zeroline=False)
    figure.update_xaxes(title_text="c, added to one score and subtracted from the other", row=2)
    figure.update_yaxes(title_text="change of loss (nats)", row=1, zeroline=True, zerolinecolor=NEUTRAL)
    figure.update_yaxes(title_text="weight", range=[-0.02, 1.02], row=2, zeroline=False)
    lay_out(figure, height=440 + BELOW, margin={"l": 10, "r": 10, "t": 40, "b": BELOW})
    return figure.update_layout(hovermode="x unified")
