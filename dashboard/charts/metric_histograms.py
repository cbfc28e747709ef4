"""The distribution of one metric on a linear axis, from stored histograms: one outline per job."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboard.charts.look import ATTENTION, BELOW, NEUTRAL, figure_text, lay_out
from dashboard.summaries import Summary

JOB_COLOURS = (ATTENTION, "#d9702b", "#2f9e6e", "#9a5bc4", "#c2426b", "#a08a1f")
_VISIBLE_PERCENT = 0.02  # bins below this are no reason to widen the axis


def metric_histograms(
    summaries: Sequence[Summary],
    names: Mapping[int, str],
    title: str,
    *,
    marks: Mapping[str, float] | None = None,
    height: int = 260,
) -> go.Figure:
    """Shares of the defined rows by bin. ``names`` by job number; ``marks`` are vertical lines with their labels.

    An end bin that also counts what lies beyond it is named so: when one points at it, and below the axis where one
    job is shown.
    """
    figure = go.Figure()
    for index, summary in enumerate(summaries):
        edges, shares = summary.bin_edges(), summary.shares()
        counts = summary.finite_counts()
        told = [
            f"{place}: {share:.2f} % ({count:,} rows)"
            for place, share, count in zip(_places(summary), shares, counts, strict=True)
        ]
        figure.add_trace(
            go.Scatter(
                # a step begins at its bin's lower edge; the last one is drawn to its end
                x=edges,
                y=[*shares, shares[-1]],
                mode="lines",
                line={"shape": "hv", "width": 1.8, "color": JOB_COLOURS[index % len(JOB_COLOURS)]},
                fill="tozeroy" if len(summaries) == 1 else None,
                name=figure_text(names[summary.job_id], 100),
                customdata=[*told, told[-1]],
                hovertemplate="%{customdata}",
            )
        )
    low, high = shared_range(summaries)
    for label, place in (marks or {}).items():
        if low <= place <= high:
            figure.add_vline(
                x=place,
                line={"color": NEUTRAL, "dash": "dot", "width": 1.5},
                annotation={"text": label, "yanchor": "top", "font": {"color": NEUTRAL}},
            )
    beyond = _beyond(summaries)
    figure.update_xaxes(title_text=f"{title} ({beyond})" if beyond else title, range=[low, high], zeroline=False)
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero", nticks=5)
    several = len(summaries) > 1
    top = 16 + 20 * len(summaries) * several
    lay_out(figure, height=height + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(showlegend=several, hovermode="x", legend={"orientation": "v"})


def _places(summary: Summary) -> list[str]:
    """What each bin holds, in words."""
    below, above = _open_ends(summary)
    edges = summary.bin_edges()
    places = [f"from {edge:.3g}" for edge in edges[:-1]]
    if below:
        places[0] = f"{edges[1]:.3g} and less"
    if above:
        places[-1] = f"{edges[-2]:.3g} and more"
    return places


def _open_ends(summary: Summary) -> tuple[bool, bool]:
    """Whether the first and the last bin count finite values from beyond their outer edges."""
    edges, counts = summary.bin_edges(), summary.finite_counts()
    return (
        counts[0] > 0 and summary.minimum is not None and summary.minimum < edges[0],
        counts[-1] > 0 and summary.maximum is not None and summary.maximum > edges[-1],
    )


def _beyond(summaries: Sequence[Summary]) -> str:
    """Which end bins hold more than their own values, where that can be seen; of all jobs."""
    parts: dict[str, None] = {}
    for summary in summaries:
        shares, edges = summary.shares(), summary.bin_edges()
        below, above = _open_ends(summary)
        if below and shares[0] >= _VISIBLE_PERCENT:
            parts[f"first bin: {edges[1]:.3g} and less"] = None
        if above and shares[-1] >= _VISIBLE_PERCENT:
            parts[f"last bin: {edges[-2]:.3g} and more"] = None
    return "; ".join(parts)


def shared_range(summaries: Sequence[Summary]) -> tuple[float, float]:
    """From the first to the last bin of any job that holds a noticeable share of its rows."""
    places = [
        edge
        for summary in summaries
        for index, share in enumerate(summary.shares())
        if share >= _VISIBLE_PERCENT
        for edge in summary.bin_edges()[index : index + 2]
    ]
    return (min(places), max(places)) if places else (0.0, 1.0)
