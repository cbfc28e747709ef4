"""The part of the Jacobian page that shows single queries of one head with their text."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.job_names import titles
from dashboard.marked_text import visible
from dashboard.queries import jacobian_spectrum as queries
from dashboard.queries.jacobian_spectrum import HeadSpectrum, Order, QueryRow, Site
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.jacobian_spectrum_heads import KIND, site_name

ROWS = 20
TOKENS_BEFORE = 12


def single_queries(jobs: Sequence[FinishedJob], heads: Sequence[HeadSpectrum], sites: Sequence[Site]) -> None:
    """The first queries of one of the chosen heads, in an order that can be chosen."""
    st.subheader("Queries with their text")
    known = {(row.job_id, row.site) for row in heads}
    choices = [(job.job_id, site) for job in jobs for site in sites if (job.job_id, site) in known]
    options = [f"{job_id}.{site[0]}.{site[1]}" for job_id, site in choices]
    if not options:
        st.caption("None of these jobs measured the chosen heads.")
        return
    names = titles(jobs)

    def words(option: str) -> str:
        job_id, site = choices[options.index(option)]
        return f"{names[job_id]} · {site_name(site)}" if len(jobs) > 1 else site_name(site).capitalize()

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
    with right:
        picked = st.selectbox(
            "Head",
            options,
            format_func=words,
            label_visibility="collapsed",
            **url.bind("rows", st.query_params.get("rows"), options),
        )
    order: Order = st.session_state["order_choice"] or orders[0]
    job_id, site = choices[options.index(picked)]
    with reading() as conn:
        rows = queries.head_rows(conn, job_id, site, order, limit=ROWS, before=TOKENS_BEFORE)
    if not rows:
        st.caption("No query of this head has a Jacobian other than 0.")
        return
    st.dataframe(
        _row_table(rows),
        hide_index=True,
        key="query_rows",
        height=rows_height(len(rows)),
        column_config={
            "Sequence": st.column_config.NumberColumn(width=80),
            "Query": st.column_config.NumberColumn(width=70, help="position in the sequence; it sees keys 0 to query"),
            "Effective rank": st.column_config.NumberColumn(format="%.2f", width=105, help="of σ²"),
            "Participation": st.column_config.NumberColumn(format="%.2f", width=105, help="(Σσ²)² / Σσ⁴"),
            "Modes > 10⁻³": st.column_config.NumberColumn(width=105, help="σ above 10⁻³ of the largest"),
            "σ_max": st.column_config.NumberColumn(format="%.3g", width=80),
            "Top weight": st.column_config.NumberColumn(format="%.3f", width=90, help="largest attention weight"),
            "Text before": st.column_config.TextColumn(width="large", alignment="right"),
            "Token": st.column_config.TextColumn(width=120, help="the query's own token"),
        },
    )
    values = {"job": job_id, "layer": site[0], "head": site[1], "limit": ROWS, "before": TOKENS_BEFORE}
    sql_and_data(
        KIND, "rows", as_text(queries.head_rows_sql(order), **values), pd.DataFrame([asdict(row) for row in rows])
    )


def _row_table(rows: Sequence[QueryRow]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Sequence": row.sequence,
                "Query": row.query,
                "Effective rank": row.effective_rank,
                "Participation": row.participation_ratio,
                "Modes > 10⁻³": row.modes_above_1e_3,
                "σ_max": row.sigma_max,
                "Top weight": row.top_attention,
                "Text before": visible(row.context),
                "Token": visible(row.token),
            }
            for row in rows
        ]
    )
