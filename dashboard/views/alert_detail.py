"""One alert in full: in words, by which rule, and the ways to what it is about."""

import streamlit as st

from dashboard.formats import count, markdown_text, moment
from dashboard.pages import ALERTS, CHECKPOINTS, JOBS, RUNS
from dashboard.queries.alerts import AlertLine
from dashboard.rule_texts import rule_text
from dashboard.views.alert_actions import acknowledge


def alert_detail(number: int, alert: AlertLine | None) -> None:
    if alert is None:
        st.warning(f"There is no alert {number}, or its watch was deleted.", icon=":material/search_off:")
        return
    with st.container(border=True):
        st.markdown(f"**Alert {alert.alert_id}** · {markdown_text(alert.message)}")
        st.caption(
            f"Raised {moment(alert.created_at)} by watch {alert.watch_id}, {markdown_text(alert.watch)}, rule "
            f"{alert.rule}: {markdown_text(rule_text(alert.rule_of_watch))}. {_posted(alert)}{_seen(alert)}"
        )
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            _links(alert)
            if alert.acknowledged_at is None:
                acknowledge([alert.alert_id], f"alert {alert.alert_id}", key="one")
            others = {name: value for name, value in st.query_params.to_dict().items() if name != "alert"}
            st.page_link(ALERTS, label="Close", icon=":material/close:", query_params=others)


def _links(alert: AlertLine) -> None:
    if alert.run_id is not None:
        st.page_link(RUNS, label=f"Run {alert.run_id}", query_params={"runs": str(alert.run_id)})
        if alert.source is not None:
            label = f"Checkpoints of run {alert.run_id}"
            st.page_link(CHECKPOINTS, label=label, query_params={"run": str(alert.run_id)})
    if alert.job_id is not None:
        st.page_link(JOBS, label=f"Job {alert.job_id}", query_params={"job": str(alert.job_id)})
    st.page_link(ALERTS, label=f"Watch {alert.watch_id}", query_params={"watch": str(alert.watch_id)})


def _posted(alert: AlertLine) -> str:
    if alert.delivered_at is not None:
        return f"Posted to its webhook {moment(alert.delivered_at)}. "
    if alert.delivery_problem is not None:
        tries = f"{count(alert.deliveries)} tries"
        return f"Not posted to its webhook after {tries}: {markdown_text(alert.delivery_problem)}. "
    return ""


def _seen(alert: AlertLine) -> str:
    if alert.acknowledged_at is None:
        return ""
    by = f" by {markdown_text(alert.acknowledged_by)}" if alert.acknowledged_by else ""
    return f"Acknowledged {moment(alert.acknowledged_at)}{by}."
