"""Losses of a sweep over two of its axes, one panel per variant: cells where the settings are a grid, else dots."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    BELOW,
    figure_text,
    lay_out,
    panel_title,
    title_pixels,
)

_PANELS_PER_ROW = 3
_CELL = 40  # pixels
_MOST_VALUES = 14  # of an axis, to be drawn as cells
_SCALE = [[0.0, "#0d2f66"], [0.25, "#3b7fcf"], [0.6, "#9cc3ec"], [1.0, "#f3ede6"]]  # low losses are dark
_BEST = "#e0218a"


@dataclass(frozen=True)
class Cell:
    """One setting of a variant: its values on both axes, the mean loss, and what is told beside it."""

    x: Any
    y: Any
    loss: float | None
    told: str
    best: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    cells: Sequence[Cell]


def setting_grid(panels: Sequence[Panel], x_title: str, y_title: str) -> go.Figure:
    """All panels share axes and colours; the best setting of each is framed."""
    xs = _ordered(cell.x for panel in panels for cell in panel.cells)
    ys = _ordered(cell.y for panel in panels for cell in panel.cells)
    columns = min(len(panels), _PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    titles = [panel_title(panel.title, columns) for panel in panels]
    top, between = 16 + title_pixels(titles), BELOW + 16 + title_pixels(titles)
    as_cells = max(len(xs), len(ys)) <= _MOST_VALUES
    row_height = max(190, _CELL * len(ys)) if as_cells else 320
    area = row_height * rows + between * (rows - 1)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=titles,
        horizontal_spacing=0.08,
        vertical_spacing=between / area if rows > 1 else 0,
    )
    for index, panel in enumerate(panels):
        place = index // columns + 1, index % columns + 1
        if as_cells:
            _cells(figure, panel, xs, ys, place)
        else:
            _dots(figure, panel, place)
    figure.update_xaxes(title_text=figure_text(x_title), showgrid=not as_cells, zeroline=False)
    figure.update_yaxes(showgrid=not as_cells, zeroline=False)
    figure.update_yaxes(title_text=figure_text(y_title), col=1)
    losses = [cell.loss for panel in panels for cell in panel.cells if cell.loss is not None]
    return lay_out(
        figure,
        height=top + area + BELOW,
        margin={"l": 10, "r": 10, "t": top, "b": BELOW},
        showlegend=False,
        coloraxis={
            "colorscale": _SCALE,
            "cmin": min(losses, default=0.0),
            "cmax": _most(losses),
            "colorbar": {
                "title": {"text": "validation loss (nats)", "side": "right"},
                "thickness": 12,
                "nticks": 5,
                "outlinewidth": 0,
            },
        },
    )


def _cells(figure: go.Figure, panel: Panel, xs: list[Any], ys: list[Any], place: tuple[int, int]) -> None:
    row, column = place
    values: list[list[float | None]] = [[None] * len(xs) for _ in ys]
    texts, told = [[""] * len(xs) for _ in ys], [["no such setting"] * len(xs) for _ in ys]
    for cell in panel.cells:
        y, x = ys.index(cell.y), xs.index(cell.x)
        values[y][x] = cell.loss
        texts[y][x] = "–" if cell.loss is None else f"{cell.loss:.3f}"
        told[y][x] = cell.told
    figure.add_trace(
        go.Heatmap(
            z=values,
            text=texts,
            texttemplate="%{text}",
            customdata=told,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=True,
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
        ),
        row=row,
        col=column,
    )
    for cell in panel.cells:
        if cell.best:
            x, y = xs.index(cell.x), ys.index(cell.y)
            line = {"color": _BEST, "width": 2.5}
            figure.add_shape(
                type="rect", x0=x - 0.5, x1=x + 0.5, y0=y - 0.5, y1=y + 0.5, line=line, row=row, col=column
            )
    figure.update_xaxes(
        tickmode="array", tickvals=list(range(len(xs))), ticktext=[value_words(x) for x in xs], row=row, col=column
    )
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(ys))), ticktext=[value_words(y) for y in ys], row=row, col=column
    )


def _dots(figure: go.Figure, panel: Panel, place: tuple[int, int]) -> None:
    row, column = place
    known = [cell for cell in panel.cells if cell.loss is not None]
    figure.add_trace(
        go.Scatter(
            x=[cell.x for cell in known],
            y=[cell.y for cell in known],
            mode="markers",
            marker={
                "size": [16 if cell.best else 11 for cell in known],
                "color": [cell.loss for cell in known],
                "coloraxis": "coloraxis",
                "line": {"color": [_BEST if cell.best else "#8a919e" for cell in known], "width": 1.5},
            },
            customdata=[cell.told for cell in known],
            hovertemplate="%{customdata}<extra></extra>",
        ),
        row=row,
        col=column,
    )
    figure.update_xaxes(type=_axis_type([cell.x for cell in known]), row=row, col=column)
    figure.update_yaxes(type=_axis_type([cell.y for cell in known]), row=row, col=column)


def _axis_type(values: Sequence[Any]) -> str:
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "category"
    return "log" if values and min(values) > 0 and max(values) / min(values) > 10 else "linear"


def _ordered(values: Any) -> list[Any]:
    """Each value once: numbers by size, before all others in the order in which they come."""
    once = {json.dumps(value, sort_keys=True): value for value in values}.values()
    numbers = [value for value in once if isinstance(value, int | float) and not isinstance(value, bool)]
    return [*sorted(numbers), *(value for value in once if value not in numbers)]


def value_words(value: Any) -> str:
    """As an axis or a table shows a value of a setting; safe for plotly."""
    if isinstance(value, float):
        return f"{value:g}"
    return figure_text(value if isinstance(value, str) else json.dumps(value), 24)


def _most(losses: Sequence[float]) -> float:
    """Where the palest colour is: a setting that diverged shall not take the colours of all the others."""
    if not losses:
        return 1.0
    ordered = sorted(losses)
    usual = ordered[max(0, math.ceil(0.8 * len(ordered)) - 1)]
    return max(usual, ordered[0] + 1e-3)
