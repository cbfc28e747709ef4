"""Numbers by step: a line for each run, or for each group of runs its mean with a band of their spread."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from dashboard.charts.look import BELOW, NEUTRAL, RUN_COLOURS, figure_text, lay_out

_DASHES = ("solid", "dash", "dot", "dashdot")
_LEGEND_LETTERS = 64
_FEW_STEPS = 15
_LETTER, _LEGEND_LINE, _ENTRY = 6.6, 20, 46  # pixels: of a letter, of a line of the legend, beside the text of an entry
_WIDTH = 1250  # of a chart on a page that is 1400 wide


@dataclass(frozen=True)
class Curve:
    """One line; ``low`` and ``high`` are the edges of its band, empty where it has none."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    place: int = 0  # among the colours
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    hover: Sequence[str] = field(default=())  # words of each point, besides its value
    colour: str | None = None  # instead of that of its place


def curves(
    lines: Sequence[Curve],
    *,
    x_title: str,
    y_title: str,
    words: Callable[[float | None], str],
    logarithmic: bool = False,
    zero: bool = False,
    markers: bool = False,
    height: int = 420,
) -> go.Figure:
    """``words`` says how a value reads; ``zero`` draws the line of no difference."""
    figure = go.Figure()
    for line in lines:
        if line.low:
            figure.add_traces(_band(line))
    for line in lines:
        values = [words(value) for value in line.y]
        beside = line.hover or [""] * len(values)
        figure.add_trace(
            go.Scatter(
                x=line.x,
                y=line.y,
                mode="lines+markers" if markers or len(line.x) < 3 else "lines",
                name=figure_text(line.name, _LEGEND_LETTERS),
                line={"color": colour_of(line), "width": 2, "dash": _DASHES[line.place // len(RUN_COLOURS) % 4]},
                text=[f"{value}{told}" for value, told in zip(values, beside, strict=True)],
                hovertemplate="%{text}",
                legendgroup=line.name,
                showlegend=True,
            )
        )
    if zero:
        figure.add_hline(y=0, line={"color": NEUTRAL, "dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text=x_title, zeroline=False, showgrid=False, hoverformat=",d", tickformat="~s")
    places = [place for line in lines for place in line.x]
    if places and max(places) - min(places) <= _FEW_STEPS:  # plotly would put ticks between them
        whole = range(math.floor(min(places)), math.ceil(max(places)) + 1)
        figure.update_xaxes(tickmode="array", tickvals=list(whole))
    figure.update_yaxes(title_text=y_title, zeroline=False, type="log" if logarithmic else "linear")
    top = 16 + _LEGEND_LINE * _legend_lines([figure_text(line.name, _LEGEND_LETTERS) for line in lines])
    margin = {"l": 10, "r": 10, "t": top, "b": BELOW}
    return lay_out(figure, height=height - 36 + top, hovermode="x unified", margin=margin)


def colour_of(line: Curve) -> str:
    return line.colour or RUN_COLOURS[line.place % len(RUN_COLOURS)]


def _band(line: Curve) -> list[go.Scatter]:
    red, green, blue = hex_to_rgb(colour_of(line))
    edges = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": line.name}
    return [
        go.Scatter(x=line.x, y=line.high, **edges),
        go.Scatter(x=line.x, y=line.low, fill="tonexty", fillcolor=f"rgba({red},{green},{blue},0.16)", **edges),
    ]


def _legend_lines(names: Sequence[str]) -> int:
    """Lines that plotly needs for a horizontal legend, whose entries are all as wide as the widest."""
    widest = max((len(name) for name in names), default=0) * _LETTER + _ENTRY
    return -(-len(names) // max(1, int(_WIDTH / widest)))
