"""Figure 8 of "Stuck in a Loop": density of r from 0 to 1.5, one outline per job, with the medians."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboard.charts.look import BELOW, NEUTRAL, figure_text, lay_out
from dashboard.charts.metric_histograms import JOB_COLOURS
from dashboard.formats import percent
from dashboard.summaries import Summary

ARTICLE_MEDIAN = 0.38


def ratio_density(summaries: Sequence[Summary], names: Mapping[int, str], height: int = 300) -> go.Figure:
    """Summaries of r; their last bin holds all beyond the axis and is told in the legend instead of drawn."""
    figure = go.Figure()
    for index, summary in enumerate(summaries):
        edges, shares = summary.bin_edges()[:-1], summary.shares()[:-1]
        densities = [share / 100 / summary.histogram_width for share in shares]
        colour = JOB_COLOURS[index % len(JOB_COLOURS)]
        figure.add_trace(
            go.Scatter(
                x=edges,
                y=[*densities, densities[-1]],
                mode="lines",
                line={"shape": "hv", "width": 1.8, "color": colour},
                fill="tozeroy" if len(summaries) == 1 else None,
                name=f"{figure_text(names[summary.job_id], 90)}; beyond 1.5: {percent(beyond(summary))}",
                customdata=[f"{count:,} rows" for count in [*summary.histogram[:-1], summary.histogram[-2]]],
                hovertemplate="from %{x:.2f}: density %{y:.3f} (%{customdata})<extra></extra>",
            )
        )
        if summary.median is not None and summary.median <= edges[-1]:
            figure.add_vline(
                x=summary.median,
                line={"color": colour, "dash": "dot", "width": 2},
                annotation={
                    "text": f"<b>median {summary.median:.2f}</b>",
                    "font": {"color": colour},
                    "yanchor": "top",
                    "yshift": -16 * index,
                    "xanchor": "left",
                },
            )
    figure.add_vline(
        x=ARTICLE_MEDIAN,
        line={"color": NEUTRAL, "dash": "dash", "width": 1.2},
        annotation={"text": f"article: {ARTICLE_MEDIAN}", "font": {"color": NEUTRAL}, "yanchor": "bottom", "y": 0.02},
        annotation_position="bottom left",
    )
    figure.update_xaxes(title_text="r, soft over hard gradient norm", range=[0, 1.5], zeroline=False)
    figure.update_yaxes(title_text="density", rangemode="tozero", nticks=5)
    top = 20 + 20 * len(summaries)
    lay_out(figure, height=height + top + BELOW, margin={"l": 10, "r": 10, "t": top, "b": BELOW})
    return figure.update_layout(showlegend=True, hovermode="x", legend={"orientation": "v"})


def beyond(summary: Summary) -> float | None:
    """Share of the defined rows in the last bin, from 1.5 on; infinite ones are in it."""
    defined = summary.n - summary.n_undefined
    return summary.histogram[-1] / defined if defined else None
