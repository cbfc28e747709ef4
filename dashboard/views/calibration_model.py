"""The parts of the calibration page that show whole models: Figure 8 and layers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.charts.median_layers import median_layers
from dashboard.charts.ratio_density import ARTICLE_MEDIAN, ratio_density
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, markdown_text, percent
from dashboard.job_names import differences, titles
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary

KIND = "calibration"
METRICS = ["r", "r_above_1_5"]
ARTICLE_ABOVE = "5.6 %"


def figure_8(jobs: Sequence[FinishedJob]) -> None:
    """Density of r with its key figures."""
    ids, names = [job.job_id for job in jobs], titles(jobs)
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=METRICS)
    by_job = {job_id: {s.metric: s for s in found if s.job_id == job_id} for job_id in ids}
    if len(jobs) == 1:
        figures = _figures(by_job[ids[0]])
        for column, (name, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
            column.metric(name, value)
    else:
        table = pd.DataFrame([_figures(by_job[job_id]) for job_id in ids])
        st.dataframe(
            pd.concat([pd.DataFrame({"Job": ids}), table, pd.DataFrame(differences(jobs))], axis="columns"),
            hide_index=True,
            key="key_figures",
            column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
            | {name: st.column_config.TextColumn(alignment="right") for name in table.columns},
        )
    ratios = [by_job[job_id]["r"] for job_id in ids if "r" in by_job[job_id]]
    if not ratios:
        st.info("No summary of r is stored.", icon=":material/search_off:")
        return
    figure = ratio_density(ratios, names)
    st.plotly_chart(
        figure,
        key="density",
        config=CHART_CONFIG,
        alt="Density of r from 0 to 1.5 over all layers, heads and queries, one outline per job.",
    )
    st.caption(
        f"{_teachers(jobs)} Figure 8 of the article, for Qwen2.5-0.5B with Qwen2.5-1.5B as teacher: median "
        f"{ARTICLE_MEDIAN}, {ARTICLE_ABOVE} of rows above 1.5. r = 1: the expected gradient is as large as a single "
        "token's." + _undefined(ratios) + _own_teachers(jobs)
    )
    sql_and_data(
        KIND,
        "density",
        as_text(summary_queries.JOB_SUMMARIES, jobs=ids, metrics=METRICS),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _figures(summaries: Mapping[str, Summary]) -> dict[str, str]:
    ratio, above = (summaries.get(metric) for metric in METRICS)
    return {
        "Median r": two_digits(ratio.median if ratio else None),
        "Middle half of r": f"{two_digits(ratio.q25)} to {two_digits(ratio.q75)}" if ratio else NOTHING,
        "Rows with r above 1.5": percent(above.mean if above else None),
        "Rows": count(ratio.n if ratio else None),
    }


def two_digits(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.005 else f"{value:.1g}"


def _undefined(ratios: Sequence[Summary]) -> str:
    undefined = sum(summary.n_undefined for summary in ratios)
    return f" Left out: {count(undefined)} rows whose hard gradient is 0." if undefined else ""


def _teachers(jobs: Sequence[FinishedJob]) -> str:
    teachers = {job.job_id: markdown_text(str(job.parameters.get("teacher"))) for job in jobs}
    if len(set(teachers.values())) == 1:
        return f"Teacher: {teachers[jobs[0].job_id]}."
    return " ".join(f"Teacher of job {job_id}: {teacher}." for job_id, teacher in teachers.items())


def _own_teachers(jobs: Sequence[FinishedJob]) -> str:
    own = [str(job.job_id) for job in jobs if job.parameters.get("teacher") == job.model]
    if not own:
        return ""
    return f" **In job {', '.join(own)} the model is its own teacher: r is 0, but for rounding.**"


def by_layer(jobs: Sequence[FinishedJob]) -> None:
    """Median r layer by layer."""
    st.subheader("By layer")
    ids, names = [job.job_id for job in jobs], titles(jobs)
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=["r"])
    figure = median_layers(found, names, "r")
    st.plotly_chart(
        figure,
        key="layers",
        config=CHART_CONFIG,
        alt="Median r by layer with the middle half of the rows as a band; the same numbers are in the CSV below.",
    )
    st.caption("Lines: median over the layer's heads and queries. Bands: the middle half of them.")
    sql_and_data(
        KIND,
        "layers",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=["r"]),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )
