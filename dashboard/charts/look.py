"""Colours, axes and text that all charts share, chosen to read on light and dark backgrounds."""

import html
import math
from collections.abc import Iterable

import plotly.graph_objects as go

from dashboard.formats import shortened, tick
from services.contracts.training.variants import CONTROL

ATTENTION = "#3b7fcf"  # everything about D_a
ADVANTAGE = "#d9702b"  # everything about D_c
NEUTRAL = "#8a919e"
RUN_COLOURS = ("#3b7fcf", "#d9702b", "#2a9d8f", "#8e6bbf", "#c2477f", "#7a8c2e", "#5c6f82", "#b0803a")
COLOURS = {"log10_d_a": ATTENTION, "log10_d_c": ADVANTAGE}
NAMES = {"log10_d_a": "D<sub>a</sub>, attention", "log10_d_c": "D<sub>c</sub>, advantage"}

ATTENTION_SCALE = [[0.0, "#eef4fb"], [0.35, "#9cc3ec"], [0.7, "#3b7fcf"], [1.0, "#0d2f66"]]
ADVANTAGE_SCALE = [[0.0, "#fdf2ea"], [0.35, "#f2b98d"], [0.7, "#d9702b"], [1.0, "#6e2c07"]]
DIFFERENCE_SCALE = [[0.0, "#8f3d0c"], [0.25, "#e39a63"], [0.5, "#f1f1ef"], [0.75, "#7fb0e6"], [1.0, "#12407f"]]

TITLE_LINE = 18  # pixels
TICK_LABELS = 24  # pixels below an axis
BELOW = 48  # pixels below the lowest axis, for tick labels and title
_FEWEST_TICKS = 3
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
    """An axis whose data are log10 values, with ticks labelled by the number itself.

    Ticks are powers of ten; where fewer than three of them are in sight, 1, 2 and 5 of every decade; where those are
    too few as well, numbers at equal distances.
    """
    first, last = math.ceil(low), math.floor(high)
    if last - first >= _FEWEST_TICKS - 1:
        powers = range(first, last + 1, max(1, round((last - first) / 8)))
        ticks = {float(power): tick(power) for power in powers}
    else:
        ticks = {math.log10(value): _number(value) for value in _between_powers(low, high)}
    return {
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": list(ticks),
        "ticktext": list(ticks.values()),
        "range": [low, high],
        "zeroline": False,
    }


def _between_powers(low: float, high: float) -> list[float]:
    """Numbers between 10^low and 10^high, fewer than three decades, for ticks."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    found = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    found = [value for value in found if low <= math.log10(value) <= high]
    if len(found) >= _FEWEST_TICKS:
        return found
    start, end = 10.0**low, 10.0**high
    rough = (end - start) / 7.5  # a step is at most 2.5 times that: three ticks at least
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next((digit for digit in (1, 2, 5) if digit * size >= rough), 10)
    return [index * step for index in range(math.ceil(start / step), math.floor(end / step) + 1)]


def _number(value: float) -> str:
    """A tick's label: 0.05, 2,000, or 2 × 10⁻⁷ where it would have more zeros than one counts."""
    if 1e-3 <= value < 1e6:
        return f"{round(value, 12):,.12g}" if value < 1 else f"{value:,.6g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    mantissa = f"{value / 10.0**exponent:.3g}"
    return tick(exponent) if mantissa == "1" else f"{mantissa} × {tick(exponent)}"


def variant_places(variants: Iterable[str | None]) -> list[int]:
    """Place of each variant among the colours: the first is the control's alone, whatever else is shown."""
    places, others = [], 0
    for variant in variants:
        if variant == CONTROL and 0 not in places:
            places.append(0)
        else:
            others += 1
            places.append(others)
    return places


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
