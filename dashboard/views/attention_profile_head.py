"""The part of the attention-profile page that shows one head: its distribution, and queries with where they look."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.metric_histograms import metric_histograms
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING
from dashboard.head_choice import head_pickers
from dashboard.job_choice import job_of_rows
from dashboard.job_names import titles
from dashboard.queries import attention_profile as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.attention_profile import Order, ProfileRow
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.tables import rows_height
from dashboard.views.attention_profile_metrics import KIND, METRICS, decimals
from dashboard.views.attention_profile_model import marks

ROWS = 20
TOKENS_BEFORE = 12
TOKENS_AROUND = 4


def one_head(jobs: Sequence[FinishedJob], metric_name: str, chosen: tuple[int, int]) -> None:
    """The head at (layer, head) in every job that has one there; the pickers do what a click in the map does."""
    layer, head = chosen
    st.subheader(f"Layer {layer}, head {head}")
    head_pickers(jobs, layer, head)
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(
            conn, summary_queries.ONE_HEAD, jobs=ids, layer=layer, head=head, metrics=list(METRICS)
        )
    with_head = [job for job in jobs if any(summary.job_id == job.job_id for summary in found)]
    if not with_head:
        st.info(
            "None of the chosen jobs has a head there. Click another cell of the map.", icon=":material/search_off:"
        )
        return
    metric = METRICS[metric_name]
    shown = [summary for summary in found if summary.metric == metric_name]
    figure = None
    if shown:
        figure = metric_histograms(shown, titles(with_head), metric.label, marks=marks(jobs, metric_name), height=180)
        st.plotly_chart(
            figure,
            key="head_distribution",
            config=CHART_CONFIG,
            alt=f"Histogram of {metric.label} over the {metric.rows} of layer {layer}, head {head}.",
        )
    table = _statistics(with_head, found)
    st.dataframe(
        table,
        hide_index=True,
        key="head_statistics",
        height=rows_height(len(table), at_most=10),
        column_config={
            name: st.column_config.TextColumn(alignment="right") for name in ("Mean", "5 %", "Median", "95 %")
        },
    )
    sql_and_data(
        KIND,
        "head",
        as_text(summary_queries.ONE_HEAD, jobs=ids, layer=layer, head=head, metrics=list(METRICS)),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )
    _rows(with_head, layer, head)


def _statistics(jobs: Sequence[FinishedJob], found: Sequence[Summary]) -> pd.DataFrame:
    rows = []
    for job in jobs:
        mine = {summary.metric: summary for summary in found if summary.job_id == job.job_id}
        for name, metric in METRICS.items():
            if (s := mine.get(name)) is not None and (name != "no_key_mass" or s.maximum):
                rows.append(
                    ({"Job": job.job_id} if len(jobs) > 1 else {})
                    | {
                        "Metric": metric.label,
                        "Mean": decimals(s.mean),
                        "5 %": decimals(s.q05),
                        "Median": decimals(s.median),
                        "95 %": decimals(s.q95),
                        "Rows": s.n,
                    }
                )
    return pd.DataFrame(rows)


def _rows(jobs: Sequence[FinishedJob], layer: int, head: int) -> None:
    st.markdown("**Queries of this head, and the key that gets most of their weight**")
    orders = list(get_args(Order))
    left, right = st.columns([3, 2])
    with left:
        st.segmented_control(
            "Order",
            orders,
            required=True,
            label_visibility="collapsed",
            **url.bind("order", st.query_params.get("order"), orders),
        )
    order: Order = st.session_state["order_choice"] or orders[0]
    with right:
        job = job_of_rows(jobs)
    with reading() as conn:
        rows = queries.head_rows(
            conn, job.job_id, layer, head, order, limit=ROWS, before=TOKENS_BEFORE, around=TOKENS_AROUND
        )
    if not rows:
        st.caption("No measured query of this head looks farther back than its eight nearest keys, key 0 apart.")
        return
    table = row_table(rows)
    st.dataframe(
        table,
        hide_index=True,
        key="head_rows",
        height=rows_height(len(rows), at_most=12),
        column_config={
            "Sequence": st.column_config.NumberColumn(width=82),
            "Query": st.column_config.NumberColumn(width=65, help="position in the sequence; it sees keys 0 to query"),
            "Text before": st.column_config.TextColumn(width=290, alignment="right"),
            "Token": st.column_config.TextColumn(width=100, help="the query's own token"),
            "Entropy": st.column_config.NumberColumn(format="%.2f", width=70, help="nats"),
            "Weight": st.column_config.NumberColumn(format="%.3f", width=70, help="on the key beside it"),
            "Back": st.column_config.NumberColumn(width=60, help="tokens from the query back to that key; 0 is itself"),
            "Key": st.column_config.NumberColumn(width=60, help="position of the key with the largest weight"),
            "Key's text": st.column_config.TextColumn(
                width=460, help="the key's token between ⟦ ⟧, with the text around it"
            ),
        },
    )
    values = {"job": job.job_id, "layer": layer, "head": head, "limit": ROWS}
    values |= {"before": TOKENS_BEFORE, "around": TOKENS_AROUND}
    sql_and_data(
        KIND, "rows", as_text(queries.head_rows_sql(order), **values), pd.DataFrame([asdict(row) for row in rows])
    )


def row_table(rows: Sequence[ProfileRow]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Sequence": row.sequence,
                "Query": row.query,
                "Text before": visible(row.before),
                "Token": visible(row.token),
                "Entropy": row.entropy_nats,
                "Weight": row.top_weight,
                "Back": row.query - row.top_key,
                "Key": row.top_key,
                "Key's text": NOTHING
                if row.top_token is None
                else visible(f"{row.top_before or ''}⟦{row.top_token}⟧{row.top_after or ''}"),
            }
            for row in rows
        ]
    )


def visible(text: str | None) -> str:
    """Line breaks as signs, so that a row stays one line."""
    return NOTHING if text is None else text.replace("\n", "⏎").replace("\t", "⇥")
