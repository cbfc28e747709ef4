"""Jacobian spectrum, Figure 3 and Table 2 of "Stuck in a Loop": in how many directions credit passes from y to q.

The address carries what is shown: jobs, heads, the map's statistic, and the job, head and order of the rows.
"""

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.queries import jacobian_spectrum as queries
from dashboard.views.jacobian_spectrum_heads import KIND, MAPS, by_head, chosen_sites
from dashboard.views.jacobian_spectrum_rows import single_queries
from dashboard.views.jacobian_spectrum_sites import figure_3, table_2

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Jacobian spectrum")
    st.markdown(
        "The gradient of a query is Jᵀδ with the Jacobian J = ∂y/∂q of its head's output. How many directions of δ get "
        "through? The **effective rank** counts them by σ², the squared singular values of J: 1 means that whatever "
        "the loss asks for, the query can only move along one line. Figure 3 and Table 2 are those of "
        f"[Stuck in a Loop]({ARTICLE})."
    )
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    with reading() as conn:
        heads = queries.heads(conn, [job.job_id for job in jobs])
    sites = chosen_sites(heads)
    if sites:
        figure_3(jobs, heads, sites)
        table_2(jobs, heads, sites)
    else:
        st.info("Choose heads above, or click them in the map.", icon=":material/arrow_upward:")
    st.divider()
    by_head(jobs, heads, sites, _statistic())
    if sites:
        st.divider()
        single_queries(jobs, heads, sites)


def _statistic() -> str:
    st.subheader("By layer and head")
    options = list(MAPS)
    st.segmented_control(
        "Statistic",
        options,
        required=True,
        format_func=lambda name: MAPS[name].label,
        label_visibility="collapsed",
        **url.bind("statistic", st.query_params.get("statistic"), options),
    )
    return st.session_state["statistic_choice"] or options[0]


guarded(page)
