"""Colours, axes and text that all charts share, chosen to read on light and dark backgrounds."""

import html
import math
from collections.abc import Iterable

import plotly.graph_objects as go

from dashboard.formats import shortened, tick

ATTENTION = "#3b7fcf"  # everything about D_a
ADVANTAGE = "#d9702b"  # everything about D_c
NEUTRAL = "#8a919e"
COLOURS = {"log10_d_a": ATTENTION, "log10_d_c": ADVANTAGE}
NAMES = {"log10_d_a": "D<sub>a</sub>, attention", "log10_d_c": "D<sub>c</sub>, advantage"}

ATTENTION_SCALE = [[0.0, "#eef4fb"], [0.35, "#9cc3ec"], [0.7, "#3b7fcf"], [1.0, "#0d2f66"]]
ADVANTAGE_SCALE = [[0.0, "#fdf2ea"], [0.35, "#f2b98d"], [0.7, "#d9702b"], [1.0, "#6e2c07"]]
DIFFERENCE_SCALE = [[0.0, "#8f3d0c"], [0.25, "#e39a63"], [0.5, "#f1f1ef"], [0.75, "#7fb0e6"], [1.0, "#12407f"]]

TITLE_LINE = 18  # pixels
TICK_LABELS = 24  # pixels below an axis
BELOW = 48  # pixels below the lowest axis, for tick labels and title
_TITLE_LETTERS = {1: 130, 2: 66, 3: 44}  # measured at 1400 pixels


def figure_text(text: str, length: int = 70) -> str:
    """User text for a title or hover box: plotly reads tags and entities (not those of quotes), so they are escaped."""
    return html.escape(shortened(" ".join(text.split()), length), quote=False)


def panel_title(text: str, columns: int) -> str:
    """A title of parts between middle dots, broken there into lines that fit a panel beside ``columns`` - 1 others."""
    width = _TITLE_LETTERS[columns]
    lines = [""]
    for part in text.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "<br>".join(figure_text(line, width) for line in lines if line)


def title_pixels(titles: Iterable[str]) -> int:
    """Height that the tallest of these panel titles needs."""
    return max((TITLE_LINE * (1 + title.count("<br>")) for title in titles if title), default=0)


def log10_axis(low: float, high: float, title: str) -> dict[str, object]:
    """An axis whose data are log10 values, with ticks at powers of ten labelled by the number itself."""
    first, last = math.ceil(low), math.floor(high)
    step = max(1, round((last - first) / 8))
    ticks = list(range(first, last + 1, step))
    return {
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [tick(value) for value in ticks],
        "range": [low, high],
        "zeroline": False,
    }


def integer_step(number: int, most: int) -> int:
    """Distance between whole-numbered ticks that labels ``number`` places with ``most`` labels or fewer."""
    return max(1, -(-number // most))


def lay_out(figure: go.Figure, height: int, **layout: object) -> go.Figure:
    """Margins, legend and hover text as everywhere on the dashboard."""
    figure.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 34, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0.0, "xanchor": "left"},
        hoverlabel={"align": "left"},
        dragmode=False,
    )
    figure.update_layout(**layout)
    figure.update_annotations(font={"size": 13})
    return figure


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
