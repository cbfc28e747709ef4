"""Figure 5: by how much the loss rises when one layer's routing is changed; by layer, and as a distribution.

Extra loss has a sign and spans six powers of ten, so its axis is linear up to a thousandth of a nat and logarithmic
beyond: asinh(x / 0.001), in decades.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import (
    BELOW,
    NEUTRAL,
    TICK_LABELS,
    figure_text,
    finite,
    integer_step,
    lay_out,
    panel_title,
    title_pixels,
)
from dashboard.charts.metric_histograms import JOB_COLOURS, shared_range
from dashboard.formats import percent
from dashboard.summaries import Summary

PANELS_PER_ROW = 2
ALL_AT_ONCE = -1  # the layer under which several that were changed at once are stored
_LINEAR = 0.001  # nats
_ARTICLE = "#e0218a"
_TICKS = [sign * 10.0**power for sign in (-1, 1) for power in range(-3, 3)] + [0.0]

# name, colour, dash and value of each line
_LINES: tuple[tuple[str, str, str, Callable[[Summary], float | None]], ...] = (
    ("maximum", "#b9a5d6", "solid", lambda summary: summary.maximum),
    ("99 %", "#8f6bbd", "solid", lambda summary: summary.q99),
    ("95 %", "#5f3b94", "solid", lambda summary: summary.q95),
    ("mean", "#d9702b", "dash", lambda summary: summary.mean),
    ("median", "#3b7fcf", "solid", lambda summary: summary.median),
)


@dataclass(frozen=True)
class Reference:
    """Medians and single tokens that the article gives, in nats by layer."""

    name: str
    first_median: float
    later_medians_at_most: float
    tokens: Mapping[int, float]


@dataclass(frozen=True)
class LossPanel:
    """One job's layer summaries of the extra loss in nats, in any order."""

    title: str
    summaries: Sequence[Summary]
    reference: Reference | None = None


def decades(nats: float) -> float:
    """The place of an extra loss on the axis."""
    return math.asinh(nats / _LINEAR) / math.log(10)


def signed(nats: float | None) -> str:
    """An extra loss in words: +9.3, −0.0021."""
    if nats is None or math.isnan(nats):
        return "–"
    if math.isinf(nats):
        return "+∞" if nats > 0 else "−∞"
    text = f"{nats:+.1f}" if abs(nats) >= 9.95 else f"{nats:+.2f}" if abs(nats) >= 0.995 else f"{nats:+.2g}"
    return text.replace("-", "−") if float(text) else "0"


def loss_by_layer(panels: Sequence[LossPanel]) -> go.Figure:
    """Median, mean, upper quantiles and maximum of the extra loss over the layers, one panel per job."""
    columns = min(len(panels), PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    titles = [panel_title(panel.title, columns) for panel in panels] if len(panels) > 1 else []
    top, between = 46 + title_pixels(titles), TICK_LABELS + 16 + title_pixels(titles)
    area = 300 * rows + between * (rows - 1)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes="all",
        horizontal_spacing=0.04,
        vertical_spacing=between / area if rows > 1 else 0,
        subplot_titles=titles or None,
    )
    for index, panel in enumerate(panels):
        place = {"rows": index // columns + 1, "cols": index % columns + 1}
        figure.add_traces(_lines(panel.summaries, legend=index == 0), **place)
        if panel.reference is not None:
            first = next(i for i, each in enumerate(panels) if each.reference is not None)
            figure.add_traces(_reference(panel.reference, panel.summaries, legend=index == first), **place)
    known = finite(value(s) for panel in panels for s in panel.summaries for *_, value in _LINES)
    known += [n for panel in panels if (r := panel.reference) for n in (r.first_median, *r.tokens.values())]
    low, high = decades(min([-0.001, *known])) - 0.15, decades(max([1.0, *known])) + 0.2
    figure.update_yaxes(**_axis(low, high, ""))
    figure.update_yaxes(title_text="extra loss (nats)", col=1)
    figure.update_xaxes(**_layer_axis(panels, 32 // columns))
    for column in range(1, columns + 1):
        figure.update_xaxes(title_text="layer changed", row=rows, col=column)
    lay_out(figure, height=top + area + BELOW, hovermode="x unified", margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(legend={"y": 1 + (title_pixels(titles) + 8) / area, "x": 1.0, "xanchor": "right"})


def extra_loss_histogram(summaries: Sequence[Summary], names: Mapping[int, str], height: int = 260) -> go.Figure:
    """Distributions of ``extra_loss_decades``, an outline per job; shares are on a log axis, since tails matter."""
    figure = go.Figure()
    least = min((share for summary in summaries for share in summary.shares() if share), default=1.0)
    floor = 10 ** math.floor(math.log10(least) - 0.3)  # where bins without a token lie, the lower end of the axis
    for index, summary in enumerate(summaries):
        shares = [max(share, floor) for share in summary.shares()]
        figure.add_trace(
            go.Scatter(
                x=summary.bin_edges(),
                y=[*shares, shares[-1]],
                mode="lines",
                line={"shape": "hv", "width": 1.8, "color": JOB_COLOURS[index % len(JOB_COLOURS)]},
                name=figure_text(names[summary.job_id], 100),
                customdata=[
                    f"from {signed(_nats(edge))} nats: {count:,} tokens ({percent(share / 100)})"
                    for edge, count, share in zip(
                        summary.bin_edges(), summary.finite_counts(), summary.shares(), strict=False
                    )
                ],
                hovertemplate="%{customdata}",
            )
        )
    low, high = shared_range(summaries)
    figure.update_xaxes(**_axis(low - 0.05, high + 0.05, "extra loss (nats)"))
    ticks = [10.0**power for power in range(round(math.log10(floor)), 3)]
    figure.update_yaxes(
        type="log",
        title_text="tokens",
        range=[math.log10(floor), 2],
        tickmode="array",
        tickvals=ticks,
        ticktext=[f"{share:g} %" for share in ticks],
    )
    several = len(summaries) > 1
    top = 16 + 20 * len(summaries) * several
    lay_out(figure, height=height + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(showlegend=several, hovermode="x", legend={"orientation": "v"})


def _nats(place: float) -> float:
    return _LINEAR * math.sinh(place * math.log(10))


def _axis(low: float, high: float, title: str) -> dict[str, object]:
    ticks = [nats for nats in sorted(_TICKS) if low <= decades(nats) <= high]
    return {
        "title": {"text": title},
        "tickmode": "array",
        "tickvals": [decades(nats) for nats in ticks],
        "ticktext": [f"{nats:g}".replace("-", "−") for nats in ticks],
        "range": [low, high],
        "zeroline": True,
    }


def _layer_axis(panels: Sequence[LossPanel], most: int) -> dict[str, object]:
    """One for all panels, from the first to the last layer of any of them, so that layers line up."""
    layers = {summary.layer for panel in panels for summary in panel.summaries if summary.layer is not None}
    first, last = min(layers, default=0), max(layers, default=0)
    step = integer_step(last - first + 1, most)
    shown = [layer for layer in range(first, last + 1) if layer == ALL_AT_ONCE or layer % step == 0]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": ["all" if layer == ALL_AT_ONCE else str(layer) for layer in shown],
        "range": [first - 0.5, last + 0.5],
        "showgrid": False,
        "zeroline": False,
    }


def _lines(summaries: Sequence[Summary], legend: bool) -> list[go.Scatter]:
    ordered = sorted(summaries, key=lambda summary: summary.layer if summary.layer is not None else 0)
    traces = []
    for name, colour, dash, value in _LINES:
        values = [value(summary) for summary in ordered]
        traces.append(
            go.Scatter(
                x=[summary.layer for summary in ordered],
                y=[None if found is None or not math.isfinite(found) else decades(found) for found in values],
                mode="lines+markers",
                line={"color": colour, "width": 2.5 if name == "median" else 1.5, "dash": dash},
                marker={"size": 6 if name == "median" else 4},
                name=name,
                legendgroup=name,
                showlegend=legend,
                customdata=[f"{name} {signed(found)}" for found in values],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
    return traces


def _reference(reference: Reference, summaries: Sequence[Summary], legend: bool) -> list[go.Scatter]:
    """The article's first median, its bound on the later ones, and its single tokens."""
    last = max((summary.layer or 0 for summary in summaries), default=0)
    shared = {"name": reference.name, "legendgroup": "article"}
    most = reference.later_medians_at_most
    return [
        go.Scatter(
            x=[0],
            y=[decades(reference.first_median)],
            mode="markers",
            marker={"symbol": "diamond-open", "size": 12, "color": _ARTICLE, "line": {"width": 2}},
            showlegend=legend,
            customdata=[f"{reference.name}: median {signed(reference.first_median)}"],
            hovertemplate="%{customdata}<extra></extra>",
            **shared,
        ),
        go.Scatter(
            x=[1, max(last, 1)],
            y=[decades(most)] * 2,
            mode="lines",
            line={"color": _ARTICLE, "dash": "dot", "width": 1.5},
            showlegend=False,
            customdata=[f"{reference.name}: medians at most {signed(most)}"] * 2,
            hovertemplate="%{customdata}<extra></extra>",
            **shared,
        ),
        go.Scatter(
            x=list(reference.tokens),
            y=[decades(nats) for nats in reference.tokens.values()],
            mode="markers",
            marker={"symbol": "x-thin", "size": 8, "color": NEUTRAL, "line": {"width": 2, "color": _ARTICLE}},
            showlegend=False,
            customdata=[f"{reference.name}, a token of Table 4: {signed(nats)}" for nats in reference.tokens.values()],
            hovertemplate="%{customdata}<extra></extra>",
            **shared,
        ),
    ]
