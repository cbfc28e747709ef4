"""Calibration, Appendix A of "Stuck in a Loop": soft against hard attention gradients, and transfer sweeps.

The address carries what is shown: jobs, statistic, layer, head, order of the rows; filters of the sweeps, and the one
that is drawn.
"""

import streamlit as st

from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.views.calibration_heads import by_head, one_head
from dashboard.views.calibration_model import KIND, by_layer, figure_8
from dashboard.views.calibration_sweeps import sweeps

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"


def page() -> None:
    st.title("Calibration")
    st.markdown(
        "Does a row of attention still have something to learn, or does it only follow the noise of single tokens? "
        "**r** compares the gradient at a row's scores when the loss is averaged over a teacher's next tokens (soft) "
        "with that of the one observed token (hard). A small r says that the pulls of different possible tokens cancel "
        f"on average: the row is calibrated. Appendix A of [Stuck in a Loop]({ARTICLE})."
    )
    jobs = chosen_jobs(KIND, model="builtin:smollm2-135m-instruct-3bit")
    if not jobs:
        return
    figure_8(jobs)
    st.divider()
    chosen = by_head(jobs)
    one_head(jobs, chosen)
    st.divider()
    by_layer(jobs)
    st.divider()
    sweeps(jobs)


guarded(page)
