"""The list of alerts: newest first, a page at a time; a click on a row shows the alert in full."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import all_records
from dashboard.formats import NOTHING
from dashboard.page_turning import page_buttons
from dashboard.pages import ALERTS
from dashboard.problems import show
from dashboard.queries import alerts as alert_queries
from dashboard.queries.alerts import AlertLine, Filters
from dashboard.queries.text import as_text
from dashboard.views.alert_actions import acknowledge
from services.contracts.errors import KeyholeError

PAGE_ROWS = 25
DOWNLOAD_ROWS = 10_000


def alert_list(filters: Filters) -> None:
    try:
        with reading() as conn:
            page = alert_queries.alert_page(
                conn, filters, before=url.integer("before"), after=url.integer("after"), limit=PAGE_ROWS
            )
            raised = bool(page.lines) or alert_queries.any_alert(conn)
    except KeyholeError as error:
        show(error)
        return
    st.subheader("Alerts")
    if not page.lines:
        told = "No alert matches these filters." if raised else "No rule has been met yet."
        st.info(told, icon=":material/filter_alt_off:" if raised else ":material/notifications_none:")
        return
    _open_selected()
    _table(page.lines)
    st.caption("Click a row to see the alert in full, with the ways to its run, job and checkpoint.")
    page_buttons(page, lambda line: line.alert_id)
    unseen = [line.alert_id for line in page.lines if line.acknowledged_at is None]
    if unseen:
        acknowledge(unseen, f"these {len(unseen)}" if len(unseen) > 1 else f"alert {unseen[0]}", key="page")


def downloads(filters: Filters) -> None:
    """Below what renews itself: a download must not go away while it is clicked."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        with st.popover("SQL", icon=":material/database:", type="tertiary"):
            st.caption("Run it with `keyhole sql` or in `keyhole psql`.")
            values = {**filters.given(), "limit": DOWNLOAD_ROWS}
            st.code(as_text(alert_queries.statement(filters), **values), language="sql")
        all_records("alerts", lambda: _records(filters), f"all alerts that match, up to {DOWNLOAD_ROWS:,}")


def _records(filters: Filters) -> list[dict[str, object]]:
    with reading() as conn:
        return [asdict(line) for line in alert_queries.alert_page(conn, filters, limit=DOWNLOAD_ROWS).lines]


def _table(lines: Sequence[AlertLine]) -> None:
    st.session_state["alerts_listed"] = [line.alert_id for line in lines]
    st.dataframe(
        frame(lines),
        key="alert_table",
        hide_index=True,
        height=38 + 36 * len(lines),
        row_height=36,
        placeholder=NOTHING,
        on_select="rerun",
        selection_mode="single-cell",
        alt="Alerts, newest first. Click a row to see the alert in full.",
        column_config=COLUMNS,
    )


def frame(lines: Sequence[AlertLine]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Alert": [line.alert_id for line in lines],
            "Seen": [["seen" if line.acknowledged_at else "new"] for line in lines],
            "Raised": [line.created_at for line in lines],
            "Watch": [line.watch_id for line in lines],
            "Run": pd.array([line.run_id for line in lines], dtype="Int64"),
            "Step": pd.array([line.step for line in lines], dtype="Int64"),
            "Metric": [line.metric for line in lines],
            "Layer": pd.array([line.layer for line in lines], dtype="Int64"),
            "Head": pd.array([line.head for line in lines], dtype="Int64"),
            "Matrix": [line.matrix for line in lines],
            "Value": [line.value for line in lines],
            "Limit": [line.threshold for line in lines],
            "And more": pd.array([line.others or None for line in lines], dtype="Int64"),
            "Job": pd.array([line.job_id for line in lines], dtype="Int64"),
            "Posted": [_posted(line) for line in lines],
        }
    )


def _posted(line: AlertLine) -> str:
    if line.delivered_at:
        return "yes"
    if line.delivery_problem:
        return "given up" if line.delivery_problem.startswith("given up") else "failing"
    return "waits" if line.deliveries else NOTHING


_column = st.column_config
COLUMNS: dict[str, Any] = {
    "Alert": _column.NumberColumn(format="%d", width=60, pinned=True),
    "Seen": _column.MultiselectColumn(width=70, options=["new", "seen"], color=["red", "gray"]),
    "Raised": _column.DatetimeColumn(format="distance", width=120),
    "Watch": _column.NumberColumn(format="%d", width=60),
    "Run": _column.NumberColumn(format="%d", width=55),
    "Step": _column.NumberColumn(format="localized", width=80),
    "Metric": _column.TextColumn(width=150),
    "Layer": _column.NumberColumn(format="%d", width=60),
    "Head": _column.NumberColumn(format="%d", width=60),
    "Matrix": _column.TextColumn(width=90),
    "Value": _column.NumberColumn(format="%.4g", width=80),
    "Limit": _column.NumberColumn(format="%.4g", width=80, help="the value from which the rule is met"),
    "And more": _column.NumberColumn(
        format="%d", width=85, help="further places met at the same look, without an alert of their own"
    ),
    "Job": _column.NumberColumn(format="%d", width=60),
    "Posted": _column.TextColumn(width=75, help="to the webhook of the watch"),
}


def _open_selected() -> None:
    """Show the alert whose row was clicked; the list may have moved since, so it is looked up in the last one."""
    listed = st.session_state.get("alerts_listed", [])
    cells = st.session_state.get("alert_table", {}).get("selection", {}).get("cells", [])
    clicked = listed[cells[0][0]] if cells and cells[0][0] < len(listed) else None
    if clicked is not None and clicked != st.session_state.get("alert_opened"):
        st.session_state["alert_opened"] = clicked
        st.switch_page(ALERTS, query_params={**st.query_params.to_dict(), "alert": str(clicked)})
