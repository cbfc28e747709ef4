"""Figure 1: the distributions of D_a and D_c over queries, from stored histograms.

For every job D_a stands above D_c on one logarithmic axis, so that the distance between them can be seen; the heights
are shares of the rows, and each quantity has one height scale for all jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.charts.look import BELOW, COLOURS, NAMES, TICK_LABELS, lay_out, log10_axis, panel_title, title_pixels
from dashboard.formats import power_of_ten
from dashboard.summaries import Summary

PANELS_PER_ROW = 3
METRICS = tuple(COLOURS)
_WITHIN_BAND = 34  # pixels between D_a and D_c of one job: the label of the median
_BAND_ROWS = len(METRICS) + 1  # with the empty one below
_VISIBLE_PERCENT = 0.02  # bins below this are no reason to widen the axis


@dataclass(frozen=True)
class Panel:
    """One job's distributions: ``summaries`` by metric name, log10 metrics only."""

    title: str
    summaries: Mapping[str, Summary]


def distributions(panels: Sequence[Panel], height_per_row: int = 120) -> go.Figure:
    """Two histograms per panel, D_a over D_c; panels are titled where there are several."""
    columns = min(len(panels), PANELS_PER_ROW)
    bands = -(-len(panels) // columns)
    titles = [""] * (bands * len(METRICS) * columns)
    for index, panel in enumerate(panels):
        if len(panels) > 1:
            place = (index // columns) * len(METRICS) * columns + index % columns
            titles[place] = panel_title(panel.title, columns)
    top = 16 + title_pixels(titles)
    # Bands are held apart by rows without axes: plotly has one spacing for all rows, which is the one within a band.
    empty_row = max(1, TICK_LABELS + top - 2 * _WITHIN_BAND)
    heights = [*[height_per_row] * len(METRICS), empty_row] * bands
    rows = len(heights) - 1
    area = sum(heights[:rows]) + _WITHIN_BAND * (rows - 1)
    height = top + area + BELOW
    figure = make_subplots(
        rows=rows,
        cols=columns,
        specs=[[None if row % _BAND_ROWS == len(METRICS) else {}] * columns for row in range(rows)],
        row_heights=heights[:rows],
        horizontal_spacing=0.05,
        vertical_spacing=_WITHIN_BAND / area,
        subplot_titles=titles,
    )
    figure.update_annotations(yshift=10)  # above the labels of the medians
    low, high = shared_range(panels)
    for index, panel in enumerate(panels):
        for offset, metric in enumerate(METRICS):
            place = {"row": (index // columns) * _BAND_ROWS + offset + 1, "col": index % columns + 1}
            summary = panel.summaries.get(metric)
            if summary is not None:
                figure.add_trace(_bars(metric, summary), **place)
                _mark_median(figure, metric, summary, (low, high), place)
    tallest = {metric: _tallest(panels, metric) for metric in METRICS}
    figure.update_xaxes(**log10_axis(low, high, ""), showticklabels=False)
    for band, (offset, metric) in product(range(bands), enumerate(METRICS)):
        row = band * _BAND_ROWS + offset + 1
        figure.update_yaxes(range=[0, 1.16 * tallest[metric]], ticksuffix=" %", nticks=4, row=row)
        figure.update_yaxes(title={"text": NAMES[metric], "font": {"color": COLOURS[metric]}}, row=row, col=1)
        if offset == len(METRICS) - 1:
            figure.update_xaxes(showticklabels=True, row=row)
    figure.update_xaxes(title_text="largest / median within one query", row=rows)
    margin = {"l": 10, "r": 10, "t": top, "b": BELOW}
    return lay_out(figure, height=height, bargap=0, showlegend=False, margin=margin)


def _bars(metric: str, summary: Summary) -> go.Bar:
    edges = summary.bin_edges()
    return go.Bar(
        x=[(left + right) / 2 for left, right in pairwise(edges)],
        y=summary.shares(),
        width=summary.histogram_width,
        marker={"color": COLOURS[metric], "opacity": 0.8, "line": {"width": 0}},
        name=NAMES[metric],
        customdata=[
            f"{power_of_ten(left)} to {power_of_ten(right)}<br>{number:,} rows"
            for (left, right), number in zip(pairwise(edges), summary.finite_counts(), strict=True)
        ],
        hovertemplate="%{customdata} (%{y:.2f} %)<extra>%{fullData.name}</extra>",
    )


def _mark_median(
    figure: go.Figure, metric: str, summary: Summary, shown: tuple[float, float], place: dict[str, int]
) -> None:
    low, high = shown
    if summary.median is None or not low <= summary.median <= high:
        return
    on_the_left = summary.median < low + 0.75 * (high - low)
    figure.add_vline(
        x=summary.median,
        line={"color": COLOURS[metric], "dash": "dot", "width": 2},
        annotation={
            "text": f"<b>median {power_of_ten(summary.median)}</b>",
            "font": {"color": COLOURS[metric]},
            "yanchor": "top",
            "xanchor": "left" if on_the_left else "right",
            "xshift": 4 if on_the_left else -4,
        },
        **place,
    )


def _tallest(panels: Sequence[Panel], metric: str) -> float:
    shares = (panel.summaries[metric].shares() for panel in panels if metric in panel.summaries)
    return max((max(each) for each in shares), default=0.0) or 1.0


def shared_range(panels: Sequence[Panel]) -> tuple[float, float]:
    """The log10 range that shows every bin with a noticeable share of its rows, from 1 on."""
    low, high = 0.0, 1.0
    for panel in panels:
        for summary in panel.summaries.values():
            edges = summary.bin_edges()
            visible = [index for index, share in enumerate(summary.shares()) if share >= _VISIBLE_PERCENT]
            if visible:
                low, high = min(low, edges[visible[0]]), max(high, edges[visible[-1] + 1])
    return low - 0.05, high + 0.1
