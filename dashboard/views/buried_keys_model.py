"""The parts of the buried-keys page that show whole models: key figures, attention ranks, layers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.attention_ranks import RankLine, attention_ranks
from dashboard.charts.coalition_layers import RANK_METRIC, SHARE_METRIC, CoalitionLayers, coalition_layers
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, percent, power_of_ten
from dashboard.job_names import differences, titles
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary

KIND = "buried_keys"
METRICS = [SHARE_METRIC, "qualifying_keys", RANK_METRIC, "favours_less", "agreeing_heads", "coalition_score"]
RANKS = {  # metric: what it is called, and the title of its axis
    RANK_METRIC: ("median of the agreeing heads", "median attention rank of a qualifying key in the agreeing heads"),
    "log10_smallest_attention_rank": (
        "the head that attends most",
        "attention rank of a qualifying key in the agreeing head that attends to it most",
    ),
    "pick_log10_attention_rank": ("single heads' own picks", "attention rank of a head's own picks, agreed on or not"),
}
_HELP = {
    "Queries with a coalition": "share of the queries of all layers in which at least one key qualified",
    "Qualifying keys": "over all layers and queries",
    "Median rank": "median over the qualifying keys of their median attention rank in the agreeing heads; 1: top",
    "Deepest rank": "largest such median rank; the article reports ranks as high as 600",
    "For less attention": "share of the qualifying keys whose heads agree on a negative advantage",
    "Most heads": "most heads that agreed on one key",
}


def whole_model(jobs: Sequence[FinishedJob]) -> None:
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=METRICS)
    by_job = {job_id: {s.metric: s for s in found if s.job_id == job_id} for job_id in ids}
    figures = [_figures(by_job[job_id]) for job_id in ids]
    if len(jobs) == 1:
        for column, (name, value) in zip(st.columns(len(figures[0])), figures[0].items(), strict=True):
            column.metric(name, value, help=_HELP[name])
    else:
        table = pd.DataFrame(figures)
        st.dataframe(
            pd.concat([pd.DataFrame({"Job": ids}), table, pd.DataFrame(differences(jobs))], axis="columns"),
            hide_index=True,
            key="key_figures",
            column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
            | {name: st.column_config.TextColumn(alignment="right", help=_HELP[name]) for name in table.columns},
        )


def _figures(summaries: Mapping[str, Summary]) -> dict[str, str]:
    abstains, _, rank, less, heads, _ = (summaries.get(metric) for metric in METRICS)
    return {
        "Queries with a coalition": percent(None if abstains is None or abstains.mean is None else 1 - abstains.mean),
        "Qualifying keys": count(rank.n if rank else 0),
        "Median rank": power_of_ten(rank.median if rank else None),
        "Deepest rank": power_of_ten(rank.maximum if rank else None),
        "For less attention": percent(less.mean if less else None),
        "Most heads": NOTHING if heads is None or heads.maximum is None else count(int(heads.maximum)),
    }


def ranks(jobs: Sequence[FinishedJob]) -> None:
    """How far down the heads' attention the keys are."""
    st.subheader("How buried")
    options = list(RANKS)
    st.segmented_control(
        "Rank",
        options,
        required=True,
        format_func=lambda metric: RANKS[metric][0],
        label_visibility="collapsed",
        **url.bind("ranks", st.query_params.get("ranks"), options),
    )
    metric = st.session_state["ranks_choice"] or options[0]
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=[metric])
    names = titles(jobs)
    lines = [RankLine(names[s.job_id], s) for s in found if s.n]
    if not lines:
        st.info("No such key is stored in these jobs.", icon=":material/search_off:")
        return
    figure = attention_ranks(lines, RANKS[metric][1])
    st.plotly_chart(
        figure,
        key="attention_ranks",
        config=CHART_CONFIG,
        alt="Distribution of attention ranks on a logarithmic axis; the same numbers are in the CSV below.",
    )
    st.caption(
        "A rank of 1 is the key the head attends to most. **What to look at:** how much lies to the right. These are "
        "keys that the loss would have several heads use more, or less, and that current attention largely excludes."
    )
    sql_and_data(
        KIND,
        "ranks",
        as_text(summary_queries.JOB_SUMMARIES, jobs=ids, metrics=[metric]),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def by_layer(jobs: Sequence[FinishedJob]) -> None:
    st.subheader("By layer")
    ids, metrics = [job.job_id for job in jobs], [SHARE_METRIC, RANK_METRIC, "favours_less"]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=metrics)
    names = titles(jobs)
    panels = [CoalitionLayers(names[job_id], [s for s in found if s.job_id == job_id]) for job_id in ids]
    figure = coalition_layers(panels, url.integer("layer"))
    st.plotly_chart(
        figure,
        key="coalition_layers",
        config=CHART_CONFIG,
        on_select=_layer_clicked,
        selection_mode="points",
        alt="Share of queries with a coalition and attention ranks of their keys, by layer; see the CSV below.",
    )
    st.caption(
        "Above: share of the layer's queries with a qualifying key. Below: attention ranks of these keys, the median "
        "and the middle half. Click a bar to list that layer's keys below."
    )
    sql_and_data(
        KIND,
        "layers",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=metrics),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _layer_clicked() -> None:
    points = st.session_state["coalition_layers"]["selection"]["points"]
    if points:
        url.write("layer", int(points[0]["x"]))
        url.write("example", None)
