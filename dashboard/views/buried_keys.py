"""Buried keys: how often heads agree on a key by advantage, how little they attend to it, and single examples.

The address carries what is shown: jobs, ranks, layer, direction, least rank, token, order, and the example.
"""

import streamlit as st

from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.views.buried_keys_example import example
from dashboard.views.buried_keys_model import KIND, by_layer, ranks, whole_model
from dashboard.views.buried_keys_ranking import ranking

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Buried keys")
    st.markdown(
        "For each query every head of a layer picks the keys of largest absolute **advantage**: those to which more, "
        "or less, attention would change the loss most. Where enough heads pick one key with one sign they form a "
        "**coalition**; where none does, the heads **abstain**. A key with a coalition far down the heads' attention "
        f"is *buried*. See “Buried Keys Are Measurable” in [Stuck in a Loop]({ARTICLE})."
    )
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    whole_model(jobs)
    ranks(jobs)
    st.divider()
    by_layer(jobs)
    st.divider()
    job, chosen = ranking(jobs)
    st.divider()
    example(job, chosen)


guarded(page)
