"""Playground: the two closed examples of "Stuck in a Loop", computed as one moves them. Needs no job.

The address carries the example and every number that was changed.
"""

import streamlit as st

from dashboard import url
from dashboard.problems import guarded
from dashboard.views.playground_credit_loop import credit_loop_example
from dashboard.views.playground_three_keys import three_keys_example

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"
EXAMPLES = {
    "keys": ("Three keys: the softmax deadlock", three_keys_example),
    "loop": ("The credit loop", credit_loop_example),
}


def page() -> None:
    st.title("Playground")
    st.markdown(
        f"Two examples of [Stuck in a Loop]({ARTICLE}), small enough to be seen whole: why a weakly attended key gets "
        "almost no gradient however useful it is, and how attention and credit feed each other from step to step."
    )
    options = list(EXAMPLES)
    st.segmented_control(
        "Example",
        options,
        required=True,
        format_func=lambda name: EXAMPLES[name][0],
        label_visibility="collapsed",
        **url.bind("example", st.query_params.get("example"), options),
    )
    EXAMPLES[st.session_state["example_choice"] or options[0]][1]()


guarded(page)
