"""Attention profile: maps and table of heads, Table 5 of "Stuck in a Loop", distributions, queries with their text.

The address carries what is shown: jobs, metric, thresholds, layer, head, filter and order of the rows.
"""

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.queries import attention_profile as queries
from dashboard.views.attention_profile_head import one_head
from dashboard.views.attention_profile_heads import by_head, head_table, metrics_shown
from dashboard.views.attention_profile_metrics import KIND, METRICS
from dashboard.views.attention_profile_model import distribution, table_5

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Attention profile")
    st.markdown(
        "Where does the attention of each query go, and how widely is it spread? The **entropy** of a row says how "
        "many keys share its weight (4.5 nats: as many as 90 equal ones); the masses say how much falls on the nearest "
        "keys, the previous token, the query itself and key 0, where most models park attention they do not need. "
        "Scores on repeated random tokens show induction, duplicate-token and previous-token heads. Table 5 is that "
        f"of [Stuck in a Loop]({ARTICLE})."
    )
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    table_5(jobs)
    st.divider()
    with reading() as conn:
        heads = queries.heads(conn, [job.job_id for job in jobs])
    names = metrics_shown(heads)
    metric = _metric(names)
    distribution(jobs, metric)
    chosen = by_head(jobs, heads, metric)
    head_table(jobs, heads, names, metric)
    st.divider()
    one_head(jobs, metric, chosen)


def _metric(options: list[str]) -> str:
    st.subheader("By layer and head")
    st.pills(
        "Metric",
        options,
        required=True,
        format_func=lambda name: METRICS[name].label,
        label_visibility="collapsed",
        **url.bind("metric", st.query_params.get("metric"), options),
    )
    return st.session_state["metric_choice"] or options[0]


guarded(page)
