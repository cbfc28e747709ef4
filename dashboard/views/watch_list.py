"""What is watched: all watches, or one with its rules and the checkpoints it saw."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, count, duration, markdown_text, moment, shortened
from dashboard.pages import ALERTS, SUITES
from dashboard.queries import alerts as alert_queries
from dashboard.queries.alerts import SeenCheckpoint, WatchLine
from dashboard.queries.text import as_text
from dashboard.rule_texts import rule_text
from dashboard.tables import rows_height

LOOKS, ENDED, PROBLEM = "looks", "ended", "problem"


def watch_list(watches: Sequence[WatchLine]) -> None:
    st.subheader("Watches")
    _open_selected()
    st.session_state["watches_listed"] = [watch.watch_id for watch in watches]
    st.dataframe(
        frame(watches),
        key="watch_table",
        hide_index=True,
        height=rows_height(len(watches), at_most=8),
        placeholder=NOTHING,
        on_select="rerun",
        selection_mode="single-cell",
        alt="Watches, those that look first. Click a row to see its rules and checkpoints.",
        column_config=COLUMNS,
    )
    st.caption("Click a row to see a watch with its rules, its checkpoints and its alerts alone.")
    for watch in watches:
        if watch.active and watch.problem:
            st.warning(
                f"Watch {watch.watch_id}: {markdown_text(shortened(watch.problem, 400))}", icon=":material/warning:"
            )


def frame(watches: Sequence[WatchLine]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Watch": [watch.watch_id for watch in watches],
            "State": [[_state(watch)] for watch in watches],
            "Name": [shortened(" ".join(watch.name.split()), 34) for watch in watches],
            "Target": [shortened(watch.target, 40, head_share=0.3) for watch in watches],
            "Rules": [shortened("; ".join(rule_text(rule) for rule in watch.rules), 46, 0.9) for watch in watches],
            "Checkpoints": [f"{watch.judged}/{watch.models}" if watch.probes else NOTHING for watch in watches],
            "Alerts": [watch.alerts for watch in watches],
            "New": [watch.unseen for watch in watches],
            "Met now": [watch.met_at for watch in watches],
            "Looked": [watch.looked_at for watch in watches],
        }
    )


_column = st.column_config
COLUMNS: dict[str, Any] = {
    "Watch": _column.NumberColumn(format="%d", width=60, pinned=True),
    "State": _column.MultiselectColumn(width=85, options=[LOOKS, ENDED, PROBLEM], color=["green", "gray", "orange"]),
    "Name": _column.TextColumn(width=175),
    "Target": _column.TextColumn(width=165),
    "Rules": _column.TextColumn(width=300),
    "Checkpoints": _column.TextColumn(width=95, help="judged, of those seen", alignment="right"),
    "Alerts": _column.NumberColumn(format="localized", width=65),
    "New": _column.NumberColumn(format="localized", width=55, help="alerts that nobody has acknowledged"),
    "Met now": _column.NumberColumn(format="localized", width=80, help="heads, layers and matrices"),
    "Looked": _column.DatetimeColumn(format="distance", width=140),
}


def watch_detail(watch: WatchLine) -> None:
    with reading() as conn:
        rules = alert_queries.rules(conn, watch.watch_id)
        seen = alert_queries.checkpoints(conn, watch.watch_id)
    st.subheader(f"Watch {watch.watch_id}: {markdown_text(watch.name)}")
    st.text(f"on {watch.target}")
    st.caption(" · ".join(_facts(watch)))
    if watch.problem and watch.active:
        st.warning(markdown_text(shortened(watch.problem, 600)), icon=":material/warning:")
    if rules:
        st.dataframe(
            pd.DataFrame(
                {
                    "Rule": [rule.number for rule in rules],
                    "Reads": [rule_text(rule.rule) for rule in rules],
                    "Alerts": [rule.alerts for rule in rules],
                    "Met now at": [rule.met_at for rule in rules],
                }
            ),
            key="rule_table",
            hide_index=True,
            height=rows_height(len(rules)),
            column_config={"Reads": st.column_config.TextColumn(width=500)},
        )
    if seen:
        _checkpoints(watch, seen)
    st.page_link(ALERTS, label="All watches", icon=":material/arrow_back:", query_params={})


def _checkpoints(watch: WatchLine, seen: Sequence[SeenCheckpoint]) -> None:
    with st.expander(f"{count(watch.models)} checkpoints seen, {count(watch.judged)} judged"):
        st.dataframe(
            pd.DataFrame(
                {
                    "Step": pd.array([each.step for each in seen], dtype="Int64"),
                    "Checkpoint": [shortened(each.source, 60, 0.3) for each in seen],
                    "State": [each.problem or ("judged" if each.judged else "is measured") for each in seen],
                    "Suite": pd.array([each.suite_id for each in seen], dtype="Int64"),
                    "Seen": [each.seen_at for each in seen],
                }
            ),
            key="seen_table",
            hide_index=True,
            height=rows_height(len(seen), at_most=10),
            placeholder=NOTHING,
            column_config={
                "Step": st.column_config.NumberColumn(format="localized"),
                "Checkpoint": st.column_config.TextColumn(width=350),
                "State": st.column_config.TextColumn(width=300),
                "Suite": st.column_config.NumberColumn(format="%d"),
                "Seen": st.column_config.DatetimeColumn(format="distance"),
            },
        )
        newest = next((each.suite_id for each in seen if each.suite_id is not None), None)
        if newest is not None:
            st.page_link(SUITES, label="Probes of the newest checkpoint", query_params={"suite": str(newest)})
        values = {"watch": watch.watch_id, "limit": alert_queries.MOST_CHECKPOINTS}
        sql = as_text(alert_queries.CHECKPOINTS, **values)
        sql_and_data("watch", f"{watch.watch_id}-checkpoints", sql, pd.DataFrame(map(asdict, seen)))


def _facts(watch: WatchLine) -> list[str]:
    facts = ["looks" if watch.active else f"ended: {watch.ended}"]
    if watch.probes:
        facts.append(f"probes {', '.join(watch.probes)} on {markdown_text(shortened(watch.dataset or '', 60))}")
    if watch.poll_s is not None and not watch.target.startswith(("run:", "suite:", "sweep:")):
        facts.append(f"every {duration(watch.poll_s)}")
    if watch.has_webhook:
        facts.append("posts to a webhook")
    if watch.failed:
        facts.append(f"{count(watch.failed)} checkpoint{'s' if watch.failed > 1 else ''} without all results")
    by = f" by {markdown_text(watch.submitted_by)}" if watch.submitted_by else ""
    facts.append(f"submitted {moment(watch.created_at)}{by}")
    if watch.looked_at is not None:
        facts.append(f"looked {moment(watch.looked_at)}")
    return facts


def _state(watch: WatchLine) -> str:
    if not watch.active:
        return ENDED
    return PROBLEM if watch.problem else LOOKS


def _open_selected() -> None:
    listed = st.session_state.get("watches_listed", [])
    cells = st.session_state.get("watch_table", {}).get("selection", {}).get("cells", [])
    if cells and cells[0][0] < len(listed):
        st.switch_page(ALERTS, query_params={"watch": str(listed[cells[0][0]])})
