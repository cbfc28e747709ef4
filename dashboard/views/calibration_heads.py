"""The parts of the calibration page that show heads: the map by layer and head, and one head's rows with their text."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ADVANTAGE_SCALE, ATTENTION_SCALE
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import percent
from dashboard.head_choice import chosen_head, figure_of_heads, head_pickers
from dashboard.job_choice import job_of_rows
from dashboard.job_names import titles
from dashboard.marked_text import visible
from dashboard.queries import calibration as queries
from dashboard.queries.calibration import HeadRatio, RatioRow, RowOrder
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.calibration_model import KIND, two_digits

ROWS = 20
TOKENS_BEFORE = 12
STATISTICS = {
    "median": Statistic("median", "median r", ATTENTION_SCALE, two_digits, logarithmic=False, tick_format=".2f"),
    "above": Statistic("above", "share of rows with r above 1.5", ADVANTAGE_SCALE, percent, logarithmic=False),
}


def by_head(jobs: Sequence[FinishedJob]) -> tuple[int, int]:
    """A map per job; returns the chosen (layer, head)."""
    st.subheader("By layer and head")
    options = list(STATISTICS)
    st.segmented_control(
        "Statistic",
        options,
        required=True,
        format_func=lambda name: STATISTICS[name].label,
        label_visibility="collapsed",
        **url.bind("statistic", st.query_params.get("statistic"), options),
    )
    statistic = STATISTICS[st.session_state["statistic_choice"] or options[0]]
    ids, names = [job.job_id for job in jobs], titles(jobs)
    with reading() as conn:
        rows = queries.heads(conn, ids)
    maps = [
        HeadMap(
            names[job],
            [Cell(job, r.layer, r.head, getattr(r, statistic.name)) for r in rows if r.job_id == job],
        )
        for job in ids
    ]
    chosen = chosen_head([cell for each in maps for cell in each.cells])
    figure = head_map(maps, statistic, selected=chosen)
    figure_of_heads(
        figure, "head_map", f"Heat map of {statistic.label} by layer and head; the same numbers are in the CSV below."
    )
    st.caption("All jobs share one colour scale. Click a cell to see that head below; hover for its value.")
    sql_and_data(KIND, "heads", as_text(queries.HEADS, jobs=ids), pd.DataFrame([asdict(row) for row in rows]), figure)
    return chosen


def one_head(jobs: Sequence[FinishedJob], chosen: tuple[int, int]) -> None:
    """Quartiles of r in the head at (layer, head) of every job, and its rows in one of them."""
    layer, head = chosen
    st.subheader(f"Layer {layer}, head {head}")
    head_pickers(jobs, layer, head)
    with reading() as conn:
        found = [r for r in queries.heads(conn, [job.job_id for job in jobs]) if (r.layer, r.head) == chosen]
    with_head = [job for job in jobs if any(row.job_id == job.job_id for row in found)]
    if not with_head:
        st.info(
            "None of the chosen jobs has a head there. Click another cell of the map.", icon=":material/search_off:"
        )
        return
    st.dataframe(
        pd.DataFrame([_quartiles(row) for row in found]),
        hide_index=True,
        key="head_statistics",
        height=rows_height(len(found)),
        column_config={"Rows": st.column_config.NumberColumn(format="localized")}
        | {
            name: st.column_config.TextColumn(alignment="right") for name in ("25 %", "Median r", "75 %", "r above 1.5")
        },
    )
    _rows(with_head, layer, head)


def _quartiles(row: HeadRatio) -> dict[str, object]:
    return {
        "Job": row.job_id,
        "25 %": two_digits(row.q25),
        "Median r": two_digits(row.median),
        "75 %": two_digits(row.q75),
        "r above 1.5": percent(row.above),
        "Rows": row.n,
    }


def _rows(jobs: Sequence[FinishedJob], layer: int, head: int) -> None:
    st.markdown("**Queries of this head with their text and the token they had to predict**")
    orders = list(get_args(RowOrder))
    left, right = st.columns([3, 2])
    with left:
        st.segmented_control(
            "Order of the rows",
            orders,
            required=True,
            label_visibility="collapsed",
            **url.bind("order", st.query_params.get("order"), orders),
        )
    order: RowOrder = st.session_state["order_choice"] or orders[0]
    with right:
        job_id = job_of_rows(jobs, "Job of the rows").job_id
    with reading() as conn:
        rows = queries.head_rows(conn, job_id, layer, head, order, limit=ROWS, before=TOKENS_BEFORE)
    if not rows:
        st.caption("No row of this head is defined.")
        return
    st.dataframe(
        pd.DataFrame([_line(row) for row in rows]),
        hide_index=True,
        key="head_rows",
        height=rows_height(len(rows)),
        column_config={
            "Sequence": st.column_config.NumberColumn(width=90),
            "Query": st.column_config.NumberColumn(width=65, help="position in the sequence; it sees keys 0 to query"),
            "r": st.column_config.NumberColumn(format="%.3f", width=65),
            "Hard": st.column_config.NumberColumn(format="%.2g", width=80, help="norm, nats per unit of score"),
            "Soft": st.column_config.NumberColumn(format="%.2g", width=80, help="norm, nats per unit of score"),
            "Text before": st.column_config.TextColumn(width="large", alignment="right"),
            "Token": st.column_config.TextColumn(width=110, help="the query's own token"),
            "Next": st.column_config.TextColumn(width=110, help="the token observed behind it"),
        },
    )
    values = {"job": job_id, "layer": layer, "head": head, "limit": ROWS, "before": TOKENS_BEFORE}
    sql_and_data(
        KIND, "rows", as_text(queries.head_rows_sql(order), **values), pd.DataFrame([asdict(row) for row in rows])
    )


def _line(row: RatioRow) -> dict[str, object]:
    return {
        "Sequence": row.sequence,
        "Query": row.query,
        "r": row.r,
        "Hard": row.hard_norm,
        "Soft": row.soft_norm,
        "Text before": (row.context or "").replace("\n", "⏎").replace("\t", "⇥"),
        "Token": visible(row.token),
        "Next": visible(row.next_token),
    }
