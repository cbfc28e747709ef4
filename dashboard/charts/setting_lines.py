"""Losses of a sweep over its only axis: a line for each variant, with the spread of its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from dashboard.charts.look import BELOW, RUN_COLOURS, figure_text, lay_out, variant_places
from dashboard.charts.setting_grid import value_words
from db.sweep_results import SettingResult


@dataclass(frozen=True)
class SettingLine:
    variant: str
    settings: Sequence[SettingResult]


def setting_lines(lines: Sequence[SettingLine], axis: str) -> go.Figure:
    """Values of the axis are placed at equal distances, numbers by size; bars are one standard deviation."""
    values = {value_words(each.setting[axis]): each.setting[axis] for line in lines for each in line.settings}
    numeric = all(isinstance(value, int | float) for value in values.values())
    order = sorted(values, key=values.__getitem__) if numeric else list(values)
    figure = go.Figure()
    for line, place in zip(lines, variant_places(line.variant for line in lines), strict=True):
        known = {value_words(each.setting[axis]): each for each in line.settings if each.mean_nats is not None}
        shown = [known[value] for value in order if value in known]
        figure.add_scatter(
            x=[value_words(each.setting[axis]) for each in shown],
            y=[each.mean_nats for each in shown],
            error_y={"type": "data", "array": [each.sd_nats or 0.0 for each in shown], "thickness": 1.2},
            mode="lines+markers",
            name=figure_text(line.variant, 40),
            line={"color": RUN_COLOURS[place % len(RUN_COLOURS)], "width": 2},
            customdata=[f"{len(each.losses_nats)} of {each.seeds} seeds" for each in shown],
            hovertemplate="%{y:.4f} nats, %{customdata}",
        )
    figure.update_xaxes(
        title_text=figure_text(axis), type="category", categoryorder="array", categoryarray=order, showgrid=False
    )
    figure.update_yaxes(title_text="final validation loss (nats)", zeroline=False)
    margin = {"l": 10, "r": 10, "t": 40, "b": BELOW}
    return lay_out(figure, height=400, hovermode="x unified", margin=margin)
