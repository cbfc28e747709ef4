"""The part of the ratchet page that shows one head: the distribution of gains, and queries with their text."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.metric_histograms import metric_histograms
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.head_choice import head_pickers
from dashboard.job_choice import job_of_rows
from dashboard.job_names import titles
from dashboard.marked_text import visible
from dashboard.queries import ratchet as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.ratchet import Order, RatchetRow
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.ratchet_model import KIND

ROWS = 20
TOKENS_BEFORE = 12
TOKENS_AROUND = 4
METRIC = "gain_lead"
_NUMBERS = {
    "Top's weight": "attention weight of the top key",
    "Runner-up's weight": "attention weight of the runner-up",
    "Top's gain": "change of the top key's advantage by the step on the value matrix, in units of η‖δ‖²X²",
    "Runner-up's gain": "the same of the runner-up",
    "Odds grow": "change of log(top's weight / runner-up's weight) by the step on the scores, in units of η‖δ‖",
}


def one_head(jobs: Sequence[FinishedJob], chosen: tuple[int, int]) -> None:
    """The head at (layer, head) in every job that has one there; the pickers do what a click in the map does."""
    layer, head = chosen
    st.subheader(f"Layer {layer}, head {head}")
    head_pickers(jobs, layer, head)
    ids, names = [job.job_id for job in jobs], titles(jobs)
    values = {"jobs": ids, "layer": layer, "head": head, "metrics": [METRIC]}
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.ONE_HEAD, **values)
    if not found:
        st.info(
            "None of the chosen jobs has a head there. Click another cell of the map.", icon=":material/search_off:"
        )
        return
    figure = metric_histograms(
        found, names, "lead gained in advantage: gain of the top key less that of the runner-up", marks={"no change": 0}
    )
    st.plotly_chart(
        figure,
        key="head_distribution",
        config=CHART_CONFIG,
        alt=f"Histogram of the lead gained over the queries of layer {layer}, head {head}.",
    )
    sql_and_data(
        KIND,
        "head",
        as_text(summary_queries.ONE_HEAD, **values),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )
    _rows([job for job in jobs if any(s.job_id == job.job_id for s in found)], layer, head)


def _rows(jobs: Sequence[FinishedJob], layer: int, head: int) -> None:
    st.markdown("**Queries of this head with their text**")
    orders = list(get_args(Order))
    st.segmented_control(
        "Order",
        orders,
        required=True,
        label_visibility="collapsed",
        **url.bind("order", st.query_params.get("order"), orders),
    )
    order: Order = st.session_state["order_choice"] or orders[0]
    left, right = st.columns(2)
    with left:
        tops = ["any top key", "not the first position"]
        st.segmented_control(
            "Top key",
            tops,
            required=True,
            label_visibility="collapsed",
            **url.bind("top", st.query_params.get("top"), tops),
        )
    least_key = int(st.session_state["top_choice"] == tops[1])
    with right:
        job = job_of_rows(jobs)
    values = {"layer": layer, "head": head, "least_key": least_key, "limit": ROWS}
    around = {"before": TOKENS_BEFORE, "around": TOKENS_AROUND}
    with reading() as conn:
        rows = queries.head_rows(conn, job.job_id, layer, head, order, least_key=least_key, limit=ROWS, **around)
    if not rows:
        st.caption("No measured query of this head is like that.")
        return
    table = row_table(rows)
    numbers = {
        name: st.column_config.NumberColumn(width=142 if name.startswith("Runner-up") else 95, format="%.3g", help=told)
        for name, told in _NUMBERS.items()
    }
    st.dataframe(
        table,
        hide_index=True,
        key="head_rows",
        height=rows_height(len(rows), at_most=12),
        column_config={
            "Sequence": st.column_config.NumberColumn(width=78),
            "Query": st.column_config.NumberColumn(width=60, help="position in the sequence; it sees keys 0 to query"),
            "Text before": st.column_config.TextColumn(width="medium", alignment="right"),
            "Token": st.column_config.TextColumn(width=80, help="the query's own token"),
            "Top key": st.column_config.TextColumn(
                width=120, help="behind the tokens before it; in brackets: position"
            ),
            "Runner-up": st.column_config.TextColumn(width=95, help="the key of the second largest weight"),
            **numbers,
        },
    )
    st.caption(
        "Weight: of the attention. Gain: change of the key's advantage by the step on "
        "the value matrix, in units of η‖δ‖²X²; the lead grows by the gain of the top key less that of the runner-up. "
        "Odds grow: change of log(top's weight / runner-up's weight) by the step on the scores, in units of η‖δ‖; "
        "negative where they shrink."
    )
    sql_and_data(KIND, "rows", as_text(queries.rows_sql(order), job=job.job_id, **values, **around), table)


def row_table(rows: Sequence[RatchetRow]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Sequence": row.sequence,
                "Query": row.query,
                "Text before": visible(row.before),
                "Token": visible(row.token),
                "Top key": f"{visible(row.top_before)}{visible(row.top_token)} ({row.top_key})",
                "Runner-up": f"{visible(row.runner_up_token)} ({row.runner_up})",
                "Top's weight": (weight := 1 / (1 + math.exp(-min(row.log_odds_rest, 700)))),
                "Runner-up's weight": weight * math.exp(-row.log_odds_runner_up),
                "Top's gain": row.gain_top,
                "Runner-up's gain": row.gain_runner_up,
                "Odds grow": row.odds_growth_runner_up,
            }
            for row in rows
        ]
    )
