"""Gradient scale, Figure 1 of "Stuck in a Loop": D_a beside D_c by job, layer and head.

The address carries what is shown: jobs, statistic, layer, head and the order of the rows.
"""

import streamlit as st

from dashboard import url
from dashboard.charts.head_map import STATISTICS
from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.views.gradient_scale_head import one_head
from dashboard.views.gradient_scale_model import by_head, by_layer, whole_model

KIND = "gradient_scale"


def page() -> None:
    st.title("Gradient scale")
    st.markdown(
        "How far does the largest value of a query lie above its median? **D\\_a** asks it of the attention weights, "
        "**D\\_c** of the absolute advantages."
    )
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    whole_model(jobs)
    st.divider()
    chosen = by_head(jobs, _statistic())
    st.divider()
    one_head(jobs, chosen)
    st.divider()
    by_layer(jobs)


def _statistic() -> str:
    st.subheader("By layer and head")
    options = list(STATISTICS)
    st.segmented_control(
        "Statistic",
        options,
        required=True,
        format_func=lambda name: STATISTICS[name].label.replace("_", "\\_"),
        label_visibility="collapsed",
        **url.bind("statistic", st.query_params.get("statistic"), options),
    )
    return st.session_state["statistic_choice"] or options[0]


guarded(page)
