"""The parts of the gradient-scale page that show whole models: distributions, heads, layers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.charts.distributions import Panel, distributions
from dashboard.charts.head_map import STATISTICS, Cell, HeadMap, head_map
from dashboard.charts.layers import LayerPanel, layers
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, markdown_text, percent, power_of_ten
from dashboard.head_choice import chosen_head, figure_of_heads
from dashboard.job_names import differences, titles
from dashboard.queries import gradient_scale as head_queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.gradient_scale import HeadStatistics
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.tables import rows_height

KIND = "gradient_scale"
LOG_METRICS = ["log10_d_a", "log10_d_c"]
METRICS = [*LOG_METRICS, "d_a_exceeds_d_c"]


def whole_model(jobs: Sequence[FinishedJob]) -> None:
    """Figure 1 with its key figures: one panel per job."""
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=METRICS)
    by_job = {job_id: {s.metric: s for s in found if s.job_id == job_id} for job_id in ids}
    if len(jobs) == 1:
        _key_figures(by_job[ids[0]])
    else:
        _key_table(jobs, by_job)
    names = titles(jobs)
    panels = [
        Panel(names[job.job_id], {m: by_job[job.job_id][m] for m in LOG_METRICS if m in by_job[job.job_id]})
        for job in jobs
    ]
    figure = distributions(panels)
    st.plotly_chart(
        figure,
        key="distributions",
        config=CHART_CONFIG,
        alt="Histograms of D_a and D_c over all queries on a logarithmic axis, one panel per job.",
    )
    st.caption(
        "**What to look at:** how far the blue hump (D\\_a) lies to the right of the orange one (D\\_c). The article's "
        "claim is that attention decides the gradient's scale: D\\_a orders of magnitude above D\\_c."
        + _left_out(found)
    )
    sql_and_data(
        KIND,
        "distributions",
        as_text(summary_queries.JOB_SUMMARIES, jobs=ids, metrics=METRICS),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _key_figures(summaries: Mapping[str, Summary]) -> None:
    figures = _figures(summaries)
    helps = {
        "Median D_a": "largest over median attention weight of a query",
        "Median D_c": "largest over median absolute advantage of a query",
        "D_a over D_c": "ratio of the two medians",
        "Queries with D_a > D_c": "share of all rows",
        "Rows": "layer, head and query triples that were measured",
    }
    for column, (name, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(markdown_text(name), value, help=helps[name])


def _key_table(jobs: Sequence[FinishedJob], by_job: Mapping[int, Mapping[str, Summary]]) -> None:
    ids = [job.job_id for job in jobs]
    figures = pd.DataFrame([_figures(by_job[job_id]) for job_id in ids])
    st.dataframe(
        pd.concat([pd.DataFrame({"Job": ids}), figures, pd.DataFrame(differences(jobs))], axis="columns"),
        hide_index=True,
        key="key_figures",
        column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
        | {name: st.column_config.TextColumn(alignment="right") for name in figures.columns},
    )


def _figures(summaries: Mapping[str, Summary]) -> dict[str, str]:
    d_a, d_c, share = (summaries.get(metric) for metric in METRICS)
    medians = (d_a.median if d_a else None, d_c.median if d_c else None)
    return {
        "Median D_a": power_of_ten(medians[0]),
        "Median D_c": power_of_ten(medians[1]),
        "D_a over D_c": power_of_ten(ratio(*medians)),
        "Queries with D_a > D_c": percent(share.mean if share else None),
        "Rows": count(d_a.n if d_a else None),
    }


def ratio(log10_d_a: float | None, log10_d_c: float | None) -> float | None:
    """log10 of D_a / D_c; None where one is missing or both are infinite."""
    if log10_d_a is None or log10_d_c is None or (math.isinf(log10_d_a) and math.isinf(log10_d_c)):
        return None
    return log10_d_a - log10_d_c


def _left_out(summaries: Sequence[Summary]) -> str:
    infinite = sum(s.n_infinite for s in summaries if s.metric in LOG_METRICS)
    undefined = sum(s.n_undefined for s in summaries if s.metric in LOG_METRICS)
    notes = []
    if infinite:
        notes.append(f"{count(infinite)} are infinite (the median is 0) and lie beyond the axis")
    if undefined:
        notes.append(f"{count(undefined)} are undefined (every advantage is 0) and are left out")
    return f" Of all values, {' and '.join(notes)}." if notes else ""


def by_head(jobs: Sequence[FinishedJob], statistic_name: str) -> tuple[int, int]:
    """The heat maps; returns the chosen (layer, head): from the address, else the one with the largest value."""
    statistic = STATISTICS[statistic_name]
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        rows = head_queries.head_statistics(conn, ids)
    names = titles(jobs)
    maps = [
        HeadMap(
            names[job.job_id],
            [Cell(r.job_id, r.layer, r.head, head_value(r, statistic_name)) for r in rows if r.job_id == job.job_id],
        )
        for job in jobs
    ]
    chosen = chosen_head([cell for each in maps for cell in each.cells])
    figure = head_map(maps, statistic, selected=chosen)
    figure_of_heads(
        figure, "head_map", f"Heat map of {statistic.label} by layer and head; the same numbers are in the CSV below."
    )
    st.caption(
        "All jobs share one colour scale. Click a cell to see that head below; hover for its value."
        + (" Blue: D_a is larger; orange: D_c is larger." if statistic.centre is not None else "")
    )
    sql_and_data(
        KIND, "heads", as_text(head_queries.HEAD_STATISTICS, jobs=ids), pd.DataFrame([asdict(r) for r in rows]), figure
    )
    return chosen


def head_value(row: HeadStatistics, statistic: str) -> float | None:
    """The cell's value; the difference of the logarithms is the logarithm of the ratio of medians."""
    if statistic == "difference":
        return ratio(row.log10_d_a, row.log10_d_c)
    return {"d_a": row.log10_d_a, "d_c": row.log10_d_c, "share": row.share}[statistic]


def by_layer(jobs: Sequence[FinishedJob]) -> None:
    """Medians layer by layer, as a chart and as a table."""
    st.subheader("By layer")
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=METRICS)
    names = titles(jobs)
    panels = [
        LayerPanel(names[job.job_id], [s for s in found if s.job_id == job.job_id and s.metric in LOG_METRICS])
        for job in jobs
    ]
    figure = layers(panels)
    st.plotly_chart(
        figure,
        key="layers",
        config=CHART_CONFIG,
        alt="Median D_a and D_c by layer with the middle half of the queries as a band.",
    )
    st.caption("Lines: median over the layer's heads and queries. Bands: the middle half of them.")
    table = _layer_table(jobs, found)
    st.dataframe(
        table,
        hide_index=True,
        key="layer_table",
        height=rows_height(len(table)),
        column_config={
            "Layer": st.column_config.NumberColumn(width=70),
            "D_a > D_c": st.column_config.TextColumn(alignment="right"),
            "Median D_a": st.column_config.TextColumn(alignment="right"),
            "Median D_c": st.column_config.TextColumn(alignment="right"),
            "D_a over D_c": st.column_config.TextColumn(alignment="right"),
            "Rows": st.column_config.NumberColumn(format="localized"),
        },
    )
    sql_and_data(
        KIND,
        "layers",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=METRICS),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _layer_table(jobs: Sequence[FinishedJob], found: Sequence[Summary]) -> pd.DataFrame:
    rows = []
    for job in jobs:
        mine = {(s.layer, s.metric): s for s in found if s.job_id == job.job_id}
        for layer in sorted({layer for layer, _ in mine if layer is not None}):
            d_a, d_c, share = (mine.get((layer, metric)) for metric in METRICS)
            rows.append(
                ({"Job": job.job_id} if len(jobs) > 1 else {})
                | {
                    "Layer": layer,
                    "Median D_a": power_of_ten(d_a.median) if d_a else NOTHING,
                    "Median D_c": power_of_ten(d_c.median) if d_c else NOTHING,
                    "D_a over D_c": power_of_ten(ratio(d_a.median, d_c.median)) if d_a and d_c else NOTHING,
                    "D_a > D_c": percent(share.mean) if share else NOTHING,
                    "Rows": d_a.n if d_a else 0,
                }
            )
    return pd.DataFrame(rows)
