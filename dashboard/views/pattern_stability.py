"""Pattern stability, Figure 4 of "Stuck in a Loop": checkpoints within runs and across them, pair by pair, by layer.

The address carries what is shown: the job, measure, pairing of heads, layer, runs, and the pair whose heads are shown.
"""

import streamlit as st

from dashboard.job_choice import chosen_jobs
from dashboard.problems import guarded
from dashboard.views.pattern_stability_pairs import heads_of_pair, matrix
from dashboard.views.pattern_stability_runs import layers_of_runs, runs_and_ends
from dashboard.views.pattern_stability_shown import KIND, shown

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"
EXAMPLE = (
    '--set run=a --set step=1000 --set \'checkpoints=[{"model": "path:run-b/step-1000", "run": "b", "step": 1000}]\''
)


def page() -> None:
    st.title("Pattern stability")
    st.markdown(
        "How much do the attention patterns of checkpoints differ on the same tokens? The article finds them settled "
        "early: by step 1,000 a run is nearer to its own end than the ends of different runs are to each other "
        f"(Figure 4 of [Stuck in a Loop]({ARTICLE})). A head is compared with the head of the same index, or with the "
        "one that an optimal assignment within the layer gives it: heads of different runs have no common order."
    )
    jobs = chosen_jobs(KIND, most=1, options=EXAMPLE)
    if not jobs:
        return
    selected = shown(jobs[0])
    if len(selected.checkpoints) < 2:
        st.info("Choose runs with at least two checkpoints together.", icon=":material/arrow_upward:")
        return
    runs_and_ends(selected)
    st.divider()
    pair = matrix(selected)
    heads_of_pair(selected, pair)
    layers_of_runs(selected)


guarded(page)
