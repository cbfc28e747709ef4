"""Entropy bound: heads against the least entropy their scores allow, sparse against low rank, both factors of σ.

The address carries what is shown: jobs, bound, thresholds of the plane, metric, layer, head and filter.
"""

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.queries import entropy_bound as queries
from dashboard.views.entropy_bound_heads import by_head, head_table, one_head
from dashboard.views.entropy_bound_metrics import KIND, METRICS, chosen_plane
from dashboard.views.entropy_bound_model import against_bound, factors, key_figures, plane


def page() -> None:
    st.title("Entropy bound")
    st.markdown(
        "How far a row's scores spread says how concentrated its attention can be: their centred norm **σ** bounds the "
        "row's entropy from below, and for n keys the bound falls as n σ exp(−σ) (Theorem 3.1 of Zhai et al. 2023, "
        "on *entropy collapse*). Sparse rows are no collapse by themselves: rows that look at different keys keep the "
        "pattern's rank, rows that all look at the same keys lose it."
    )
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    with reading() as conn:
        rows = queries.heads(conn, [job.job_id for job in jobs])
    shown = chosen_plane()
    key_figures(jobs, rows, shown)
    against_bound(jobs, rows)
    st.divider()
    plane(jobs, rows, shown)
    st.divider()
    factors(jobs)
    st.divider()
    metric = _metric()
    chosen = by_head(jobs, rows, metric)
    head_table(jobs, rows, metric, shown)
    st.divider()
    one_head(jobs, chosen)


def _metric() -> str:
    st.subheader("By layer and head")
    options = list(METRICS)
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
