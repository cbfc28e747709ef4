"""One query: which keys each head of a layer picks, with which sign, and on which of them enough heads agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from dashboard.charts.look import BELOW, NEUTRAL, figure_text, integer_step, lay_out

MORE, LESS = "#3b7fcf", "#d9702b"  # sign of the advantage: more attention lowers the loss, or less does
_MOST_LABELS = 70


@dataclass(frozen=True)
class PickMark:
    """One head's pick; ``advantage`` over the row's root mean square, ``place`` 1 for the head's own top key."""

    head: int
    key: int
    advantage: float
    weight: float
    attention_rank: int
    place: int
    agrees: bool


def coalition(picks: Sequence[PickMark], tokens: Mapping[int, str], chosen: Mapping[int, int]) -> go.Figure:
    """Heads from top to bottom, the picked keys from left to right in the order of the text.

    ``tokens`` are the keys' texts, ``chosen`` the direction of each qualifying key, whose column is shaded. Full marks
    agree with a coalition, the size is that of the advantage, a cross lies on each head's own top key.
    """
    keys = sorted({pick.key for pick in picks})
    column = {key: index for index, key in enumerate(keys)}
    heads = 1 + max((pick.head for pick in picks), default=0)
    largest = max((abs(pick.advantage) for pick in picks), default=1.0)
    figure = go.Figure()
    for key, direction in chosen.items():
        if key in column:
            colour = MORE if direction > 0 else LESS
            figure.add_vrect(
                x0=column[key] - 0.5, x1=column[key] + 0.5, fillcolor=colour, opacity=0.14, line_width=0, layer="below"
            )
    for sign, colour, name in ((1, MORE, "more attention lowers the loss"), (-1, LESS, "less attention lowers it")):
        mine = [pick for pick in picks if (pick.advantage > 0) == (sign > 0)]
        figure.add_trace(
            go.Scatter(
                x=[column[pick.key] for pick in mine],
                y=[pick.head for pick in mine],
                mode="markers",
                name=name,
                marker={
                    "color": colour,
                    "symbol": ["circle" if pick.agrees else "circle-open" for pick in mine],
                    "size": [8 + 16 * (abs(pick.advantage) / largest) ** 0.5 for pick in mine],
                    "line": {"width": 2, "color": colour},
                },
                customdata=[
                    f"head {pick.head}, key {pick.key} “{figure_text(tokens.get(pick.key, ''), 30)}”<br>"
                    f"advantage {pick.advantage:+.2f} × rms (number {pick.place} of the head)<br>"
                    f"attention rank {pick.attention_rank:,}, weight {pick.weight:.3g}"
                    for pick in mine
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    top = [pick for pick in picks if pick.place == 1]
    figure.add_trace(
        go.Scatter(
            x=[column[pick.key] for pick in top],
            y=[pick.head for pick in top],
            mode="markers",
            name="the head's own top key",
            marker={"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": NEUTRAL}},
            hoverinfo="skip",
        )
    )
    step = integer_step(len(keys), _MOST_LABELS)
    shown = [key for key in keys if key in chosen or column[key] % step == 0]
    figure.update_xaxes(
        tickmode="array",
        tickvals=[column[key] for key in shown],
        ticktext=[_label(tokens.get(key, ""), key, bold=key in chosen) for key in shown],
        tickangle=-60,
        range=[-0.7, max(len(keys), 1) - 0.3],
        title_text="picked keys, in the order of the text",
        zeroline=False,
    )
    figure.update_yaxes(
        range=[heads - 0.4, -0.6], dtick=integer_step(heads, 24), title_text="head", zeroline=False, tick0=0
    )
    labels = 90
    height = 60 + max(160, 26 * heads) + BELOW + labels
    return lay_out(figure, height=height, margin={"l": 10, "r": 10, "t": 40, "b": BELOW + labels})


def _label(token: str, key: int, *, bold: bool) -> str:
    text = f"{figure_text(token, 16) or '␣'} {key}"
    return f"<b>{text}</b>" if bold else text
