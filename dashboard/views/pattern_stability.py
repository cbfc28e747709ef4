"""Stability, Figure 4 of "Stuck in a Loop": patterns of checkpoints within runs and across them, by pair and layer.

The address carries what is shown: the job, measure, pairing of heads, layer, runs, and the pair whose heads are shown.
"""

import streamlit as st

from dashboard.connection import reading
from dashboard.job_choice import chosen_jobs
from dashboard.pages import CHECKPOINTS, RUNS
from dashboard.problems import guarded
from dashboard.queries import pattern_stability as queries
from dashboard.views.pattern_stability_pairs import heads_of_pair, matrix
from dashboard.views.pattern_stability_runs import layers_of_runs, runs_and_ends
from dashboard.views.pattern_stability_shown import KIND, shown

ARTICLE = "https://hyperstition.cc/stuck-in-a-loop"
EXAMPLE = (
    '--set run=a --set step=1000 --set \'checkpoints=[{"model": "path:run-b/step-1000", "run": "b", "step": 1000}]\''
)


def page() -> None:
    st.title("Stability")
    st.markdown(
        "How much do the attention patterns of checkpoints differ on the same tokens? The article finds them settled "
        "early: by step 1,000 a run is nearer to its own end than the ends of different runs are to each other "
        f"(Figure 4 of [Stuck in a Loop]({ARTICLE})). A head is compared with the head of the same index, or with the "
        "one that an optimal assignment within the layer gives it: heads of different runs have no common order."
    )
    jobs = chosen_jobs(KIND, most=1, options=EXAMPLE)
    if not jobs:
        _of_own_runs()
        return
    _links(jobs[0].job_id)
    selected = shown(jobs[0])
    if len(selected.checkpoints) < 2:
        st.info("Choose runs with at least two checkpoints together.", icon=":material/arrow_upward:")
        return
    runs_and_ends(selected)
    st.divider()
    pair = matrix(selected)
    heads_of_pair(selected, pair)
    layers_of_runs(selected)


def _of_own_runs() -> None:
    """What else fills the page where no job has yet."""
    if "jobs" in st.query_params:
        return
    st.caption(
        "Or train three seeds of a small model and compare all their checkpoints, some six minutes on two CPU cores:"
    )
    st.code("keyhole submit suite --preset laboratory/figure-4-small --wait", language="bash")
    st.caption("Or compare the checkpoints of runs that are there:")
    st.code(
        "keyhole submit suite --probe pattern_stability --model run:1 --model run:2 --dataset builtin:python-docs",
        language="bash",
    )


def _links(job_id: int) -> None:
    """To the training runs whose checkpoints the job compares, where they are of this laboratory."""
    with reading() as conn:
        runs = queries.runs(conn, job_id)
    if not runs:
        return
    joined = {"runs": ",".join(map(str, runs))}
    with st.container(horizontal=True, gap="small"):
        label = f"Run {runs[0]}" if len(runs) == 1 else f"Its {len(runs)} runs"
        st.page_link(RUNS, label=label, icon=":material/show_chart:", query_params=joined)
        st.page_link(CHECKPOINTS, label="Their checkpoints", icon=":material/save:", query_params=joined)


guarded(page)
