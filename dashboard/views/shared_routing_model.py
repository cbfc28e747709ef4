"""The parts of the shared-routing page that show whole models: key figures and Figure 5."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import pandas as pd
import streamlit as st

from dashboard.charts.extra_loss import ALL_AT_ONCE, LossPanel, Reference, loss_by_layer, signed
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, percent
from dashboard.job_names import differences, titles
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.tables import rows_height

KIND = "shared_routing"
EXTRA, DECADES, RISES, UNMODIFIED = (
    "extra_loss_nats",
    "extra_loss_decades",
    "loss_rises_by_a_nat",
    "unmodified_loss_nats",
)
# Figure 5 and Table 4 of the article; the figure's other layers are not given as numbers.
_ARTICLE = Reference(
    "article, Qwen2.5-1.5B", 4.76, 0.003, {1: 9.3, 6: 5.9, 14: 7.9, 15: 13.9, 22: 6.6, 26: 5.2, 27: 6.6}
)
_ARTICLE_MODEL = re.compile(r"(^|[/:])qwen2\.5-1\.5b/?(@|$)", re.IGNORECASE)


def described(jobs: Sequence[FinishedJob]) -> list[FinishedJob]:
    """The jobs without the parameters that their routing does not use, so that names tell only what was measured."""
    found = []
    for job in jobs:
        unused = set()
        if job.parameters.get("routing") == "shared_softmax":
            unused = {"bias", "fit_sequences"}
        elif job.parameters.get("bias") != "fitted":
            unused = {"fit_sequences"}
        used = {name: value for name, value in job.parameters.items() if name not in unused}
        found.append(replace(job, parameters=used))
    return found


def layer_name(layer: int) -> str:
    return "all at once" if layer == ALL_AT_ONCE else str(layer)


def layer_summaries(jobs: Sequence[FinishedJob], metrics: Sequence[str]) -> list[Summary]:
    with reading() as conn:
        return summary_queries.summaries(
            conn, summary_queries.LAYER_SUMMARIES, jobs=[job.job_id for job in jobs], metrics=list(metrics)
        )


def whole_model(jobs: Sequence[FinishedJob]) -> None:
    """Key figures: what the model loses at its most and at its other layers."""
    ids = [job.job_id for job in jobs]
    layers = layer_summaries(jobs, [EXTRA])
    with reading() as conn:
        unmodified = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=[UNMODIFIED])
    losses = {summary.job_id: summary.mean for summary in unmodified}
    figures = [_figures([s for s in layers if s.job_id == job_id], losses.get(job_id)) for job_id in ids]
    if len(jobs) == 1:
        for column, (name, value) in zip(st.columns(len(_HELPS)), figures[0].items(), strict=True):
            column.metric(name, value, help=_HELPS[name])
        return
    table = pd.DataFrame(figures)
    st.dataframe(
        pd.concat([pd.DataFrame({"Job": ids}), table, pd.DataFrame(differences(jobs))], axis="columns"),
        hide_index=True,
        key="key_figures",
        column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
        | {name: st.column_config.TextColumn(alignment="right", help=_HELPS[name]) for name in table.columns},
    )


_HELPS = {
    "Unmodified loss": "mean over the tokens, in nats",
    "Largest median": "of the extra loss in nats, and the layer at which it is",
    "Other medians": "the largest of the other layers' medians of the extra loss, in nats",
    "Largest extra loss": "of any single token at any layer, in nats",
}


def _figures(layers: Sequence[Summary], unmodified: float | None) -> dict[str, str]:
    medians = sorted(
        ((s.median, s.layer) for s in layers if s.median is not None and s.layer is not None), reverse=True
    )
    largest = max((s.maximum for s in layers if s.maximum is not None), default=None)
    most = NOTHING
    if medians:
        where = "all layers at once" if medians[0][1] == ALL_AT_ONCE else f"layer {medians[0][1]}"
        most = f"{signed(medians[0][0])}, {where}"
    return {
        "Unmodified loss": NOTHING if unmodified is None else f"{unmodified:.3f}",
        "Largest median": most,
        "Other medians": f"≤ {signed(medians[1][0])}" if len(medians) > 1 else NOTHING,
        "Largest extra loss": signed(largest),
    }


def by_layer(jobs: Sequence[FinishedJob]) -> None:
    """Figure 5 with its numbers: one panel per job."""
    st.subheader("By layer")
    metrics = [EXTRA, RISES]
    found = layer_summaries(jobs, metrics)
    names = titles(jobs)
    panels = [
        LossPanel(
            names[job.job_id],
            [s for s in found if s.job_id == job.job_id and s.metric == EXTRA],
            _ARTICLE if is_the_articles(job) else None,
        )
        for job in jobs
    ]
    figure = loss_by_layer(panels)
    st.plotly_chart(
        figure,
        key="loss_by_layer",
        config=CHART_CONFIG,
        alt="Median, mean, upper quantiles and maximum of the extra loss by layer; the same numbers are in the table.",
    )
    st.caption(_caption(jobs, compared=any(panel.reference is not None for panel in panels)))
    table = _layer_table(jobs, found)
    st.dataframe(
        table,
        hide_index=True,
        key="layer_table",
        height=rows_height(len(table)),
        column_config={
            "Layer": st.column_config.TextColumn(width=90),
            "Tokens": st.column_config.NumberColumn(format="localized"),
        }
        | {
            name: st.column_config.TextColumn(alignment="right")
            for name in ("Median", "Mean", "95 %", "99 %", "Largest", "Above 1 nat")
        },
    )
    sql_and_data(
        KIND,
        "layers",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=[job.job_id for job in jobs], metrics=metrics),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _caption(jobs: Sequence[FinishedJob], *, compared: bool) -> str:
    together = [bool(job.parameters.get("together")) for job in jobs]
    changed = [] if all(together) else ["one layer is changed at a time"]
    if any(together):
        changed.append("“all” stands for the job's layers changed at once")
    parts = [f"Statistics over tokens; {'; '.join(changed)}."]
    parts.append("The axis is linear below a thousandth of a nat and logarithmic above.")
    parts.append(
        "**What to look at:** the median says what an ordinary token needs of separate heads, the upper quantiles "
        "what the rare ones do."
    )
    alike = [
        job.parameters.get("routing") == "shared_softmax" and not at_once
        for job, at_once in zip(jobs, together, strict=True)
    ]
    if any(alike):
        where = "In the article" if all(alike) else "In the article, for a shared softmax of one layer at a time,"
        parts.append(
            f"{where} the first layer's median is +4.76 nats, later ones are at most +0.003, while single tokens there "
            "still lose up to 13.9."
        )
    if compared:
        parts.append("Pink: the article's figures; crosses are the single tokens of its Table 4.")
    return " ".join(parts)


def is_the_articles(job: FinishedJob) -> bool:
    """Whether the job measured what the article did: its model, its routing, one layer at a time."""
    asked: Mapping[str, object] = job.parameters
    return (
        _ARTICLE_MODEL.search(job.model) is not None
        and asked.get("routing") == "shared_softmax"
        and not asked.get("together")
    )


def _layer_table(jobs: Sequence[FinishedJob], found: Sequence[Summary]) -> pd.DataFrame:
    rows = []
    for job in jobs:
        mine = {(s.layer, s.metric): s for s in found if s.job_id == job.job_id}
        for layer in sorted({layer for layer, _ in mine if layer is not None}):
            extra, rises = mine.get((layer, EXTRA)), mine.get((layer, RISES))
            if extra is None:
                continue
            rows.append(
                ({"Job": job.job_id} if len(jobs) > 1 else {})
                | {
                    "Layer": layer_name(layer),
                    "Median": signed(extra.median),
                    "Mean": signed(extra.mean),
                    "95 %": signed(extra.q95),
                    "99 %": signed(extra.q99),
                    "Largest": signed(extra.maximum),
                    "Above 1 nat": percent(rises.mean if rises else None),
                    "Tokens": extra.n,
                }
            )
    return pd.DataFrame(rows)
