"""Ratchet, equations 26 to 33 of "Stuck in a Loop": where one gradient step pulls the top key further ahead.

The address carries what is shown: jobs, statistic, scope of the bands, layer, head, order and filter of the rows.
"""

import streamlit as st

from dashboard import url
from dashboard.job_choice import chosen_jobs
from dashboard.pages import PLAYGROUND
from dashboard.problems import guarded
from dashboard.views.ratchet_head import one_head
from dashboard.views.ratchet_model import KIND, STATISTICS, by_band, by_head, by_layer, whole_model

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Ratchet")
    st.markdown(
        "Would one step of gradient descent, taken for a single query through a single head, pull its top key further "
        "ahead? A step on the **value matrix** changes every key's advantage, a step on the **scores** the attention "
        "odds. Where the top key's lead grows in both, more attention earns more credit and more credit earns more "
        f"attention: the loop of [Stuck in a Loop]({ARTICLE}). Its sign is not given; that is what is measured here."
    )
    st.page_link(PLAYGROUND, label="Play the loop on a small example", icon=":material/play_circle:")
    jobs = chosen_jobs(KIND)
    if not jobs:
        return
    whole_model(jobs)
    st.divider()
    chosen = by_head(jobs, _statistic())
    st.divider()
    by_band(jobs, chosen)
    st.divider()
    by_layer(jobs)
    st.divider()
    one_head(jobs, chosen)


def _statistic() -> str:
    st.subheader("By layer and head")
    options = list(STATISTICS)
    st.segmented_control(
        "Statistic",
        options,
        required=True,
        format_func=lambda name: STATISTICS[name].short,
        label_visibility="collapsed",
        **url.bind("statistic", st.query_params.get("statistic"), options),
    )
    return st.session_state["statistic_choice"] or options[0]


guarded(page)
