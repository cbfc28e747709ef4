"""Shared routing, Figure 5 and Table 4 of "Stuck in a Loop": what sharing one pattern among heads costs, by layer.

The address carries what is shown: jobs, layer, the job of the tokens and their order.
"""

import streamlit as st

from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.views.shared_routing_model import KIND, by_layer, described, whole_model
from dashboard.views.shared_routing_tokens import one_layer

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Shared routing")
    st.markdown(
        "What is lost when all heads of a layer attend alike? The layer's scores are averaged over its heads before "
        "the softmax, each head keeps its values, and every other layer stays as it is. The **extra loss** of a token "
        "is its loss then minus its loss under the unmodified model. Sigmoid routing gives each key its weight by "
        f"itself instead. See Figure 5 and equations 34–38 of [Stuck in a Loop]({ARTICLE})."
    )
    jobs = described(chosen_jobs(KIND))
    if not jobs:
        return
    whole_model(jobs)
    by_layer(jobs)
    st.divider()
    one_layer(jobs)


guarded(page)
