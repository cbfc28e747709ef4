"""The part of the gradient-scale page that shows one head: its distributions and its rows with their text."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.distributions import Panel, distributions
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, percent, power_of_ten
from dashboard.head_choice import head_pickers
from dashboard.job_choice import job_of_rows
from dashboard.job_names import titles
from dashboard.queries import gradient_scale as head_queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.gradient_scale import HeadRow, Order
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.tables import rows_height
from dashboard.views.gradient_scale_model import KIND, LOG_METRICS, METRICS

ROWS = 20
TOKENS_BEFORE = 12


def one_head(jobs: Sequence[FinishedJob], chosen: tuple[int, int]) -> None:
    """The head at (layer, head) in every job that has one there; the pickers do what a click in the map does."""
    layer, head = chosen
    st.subheader(f"Layer {layer}, head {head}")
    head_pickers(jobs, layer, head)
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(
            conn, summary_queries.ONE_HEAD, jobs=ids, layer=layer, head=head, metrics=METRICS
        )
    with_head = [job for job in jobs if any(s.job_id == job.job_id for s in found)]
    if not with_head:
        st.info(
            "None of the chosen jobs has a head there. Click another cell of the map.", icon=":material/search_off:"
        )
        return
    names = titles(with_head)
    panels = [
        Panel(names[job.job_id], {s.metric: s for s in found if s.job_id == job.job_id and s.metric in LOG_METRICS})
        for job in with_head
    ]
    figure = distributions(panels)
    st.plotly_chart(
        figure,
        key="head_distributions",
        config=CHART_CONFIG,
        alt=f"Histograms of D_a and D_c over the queries of layer {layer}, head {head}.",
    )
    st.dataframe(
        _statistics(with_head, found),
        hide_index=True,
        key="head_statistics",
        column_config={"Rows": st.column_config.NumberColumn(format="localized")}
        | {
            name: st.column_config.TextColumn(alignment="right")
            for name in ("5 %", "25 %", "Median", "75 %", "95 %", "Infinite", "D_a > D_c")
        },
    )
    sql_and_data(
        KIND,
        "head",
        as_text(summary_queries.ONE_HEAD, jobs=ids, layer=layer, head=head, metrics=METRICS),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )
    _rows(with_head, layer, head)


def _statistics(jobs: Sequence[FinishedJob], found: Sequence[Summary]) -> pd.DataFrame:
    rows = []
    for job in jobs:
        mine = {s.metric: s for s in found if s.job_id == job.job_id}
        share = mine.get("d_a_exceeds_d_c")
        for metric, name in (("log10_d_a", "D_a"), ("log10_d_c", "D_c")):
            if (s := mine.get(metric)) is not None:
                rows.append(
                    {
                        "Job": job.job_id,
                        "Quantity": name,
                        "5 %": power_of_ten(s.q05),
                        "25 %": power_of_ten(s.q25),
                        "Median": power_of_ten(s.median),
                        "75 %": power_of_ten(s.q75),
                        "95 %": power_of_ten(s.q95),
                        "Infinite": count(s.n_infinite),
                        "Rows": s.n,
                        "D_a > D_c": percent(share.mean) if share else NOTHING,
                    }
                )
    return pd.DataFrame(rows)


def _rows(jobs: Sequence[FinishedJob], layer: int, head: int) -> None:
    st.markdown("**Queries of this head with their text**")
    orders = list(get_args(Order))
    left, right = st.columns([3, 2])
    with left:
        st.segmented_control(
            "Order",
            orders,
            required=True,
            format_func=lambda order: order.replace("_", "\\_"),
            label_visibility="collapsed",
            **url.bind("order", st.query_params.get("order"), orders),
        )
    order: Order = st.session_state["order_choice"] or orders[0]
    with right:
        job = job_of_rows(jobs)
    with reading() as conn:
        rows = head_queries.head_rows(conn, job.job_id, layer, head, order, limit=ROWS, before=TOKENS_BEFORE)
    if not rows:
        st.caption("No query of this head has D_c above D_a." if order == "D_c above D_a" else "No rows are stored.")
        return
    st.dataframe(
        _row_table(rows),
        hide_index=True,
        key="head_rows",
        height=rows_height(len(rows)),
        column_config={
            "Sequence": st.column_config.NumberColumn(width=80),
            "Query": st.column_config.NumberColumn(width=70, help="position in the sequence; it sees keys 0 to query"),
            "D_a": st.column_config.TextColumn(width=90, alignment="right"),
            "D_c": st.column_config.TextColumn(width=90, alignment="right"),
            "Text before": st.column_config.TextColumn(width="large", alignment="right"),
            "Token": st.column_config.TextColumn(width=120, help="the query's own token"),
        },
    )
    values = {"job": job.job_id, "layer": layer, "head": head, "limit": ROWS, "before": TOKENS_BEFORE}
    sql_and_data(
        KIND, "rows", as_text(head_queries.head_rows_sql(order), **values), pd.DataFrame([asdict(row) for row in rows])
    )


def _row_table(rows: Sequence[HeadRow]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Sequence": row.sequence,
                "Query": row.query,
                "D_a": power_of_ten(row.log10_d_a),
                "D_c": power_of_ten(row.log10_d_c),
                "Text before": _visible(row.context),
                "Token": _visible(row.token),
            }
            for row in rows
        ]
    )


def _visible(text: str | None) -> str:
    """Line breaks as signs, so that a row stays one line."""
    return NOTHING if text is None else text.replace("\n", "⏎").replace("\t", "⇥")
