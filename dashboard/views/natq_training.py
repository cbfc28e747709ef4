"""NATQ: training: variants against the control as Figure 6 and Table 5 of "Stuck in a Loop", with the noise of seeds.

The address carries what is shown: a sweep, whose best setting of each variant is taken, or runs.
"""

import streamlit as st

from dashboard.live import STEADY
from dashboard.problems import guarded
from dashboard.run_names import groups
from dashboard.views.natq_training_attention import attention
from dashboard.views.natq_training_chosen import chosen_runs
from dashboard.views.natq_training_loss import losses
from dashboard.views.natq_training_solver import solver
from dashboard.views.natq_training_table import table_5

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.html(STEADY)
    st.title("NATQ: training")
    st.markdown(
        "NATQ gives each query's gradient the damped inverse of its row's Fisher matrix, so that the loss can move "
        "attention that the softmax has all but frozen (equations 42–44). The article finds that attention then "
        "spreads, more entropy and less weight nearby, and that the loss is higher "
        f"(Figure 6 and Table 5 of [Stuck in a Loop]({ARTICLE})). Differences here stand beside the noise of seeds."
    )
    chosen = chosen_runs()
    if chosen is None:
        return
    alike = groups(chosen.runs)
    losses(chosen, alike)
    st.divider()
    table_5(alike)
    st.divider()
    attention(chosen.runs, alike)
    solver(chosen.runs)


guarded(page)
