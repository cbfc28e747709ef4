"""Gradient scale, Figure 1 of "Stuck in a Loop": D_a beside D_c by job, layer and head.

The address carries what is shown: jobs, statistic, layer, head and the order of the rows.
"""

import streamlit as st

from dashboard import queries, url
from dashboard.charts.head_map import STATISTICS
from dashboard.connection import reading
from dashboard.job_names import picker_names
from dashboard.pages import JOBS
from dashboard.problems import guarded
from dashboard.queries import FinishedJob
from dashboard.views.gradient_scale_head import one_head
from dashboard.views.gradient_scale_model import by_head, by_layer, whole_model

KIND = "gradient_scale"
MOST_JOBS = 6
COMMAND = f"keyhole submit {KIND} --model builtin:smollm2-135m-instruct --dataset builtin:python-docs --wait"


def page() -> None:
    st.title("Gradient scale")
    st.markdown(
        "How far does the largest value of a query lie above its median? **D\\_a** asks it of the attention weights, "
        "**D\\_c** of the absolute advantages."
    )
    with reading() as conn:
        finished = queries.finished_jobs(conn, KIND)
    if not finished:
        st.info("No gradient_scale job has succeeded yet. This command submits one:", icon=":material/rocket_launch:")
        st.code(COMMAND, language="bash")
        st.page_link(JOBS, label="See the jobs that wait or run", icon=":material/list:")
        return
    jobs = _choose({job.job_id: job for job in finished})
    if not jobs:
        st.info(
            "Choose one or more finished jobs above; several are shown side by side.", icon=":material/arrow_upward:"
        )
        return
    whole_model(jobs)
    st.divider()
    chosen = by_head(jobs, _statistic())
    st.divider()
    one_head(jobs, chosen)
    st.divider()
    by_layer(jobs)


def _choose(finished: dict[int, FinishedJob]) -> list[FinishedJob]:
    asked = url.integers("jobs")
    if "jobs" not in st.query_params:
        asked = [next(iter(finished))]
    missing = [job_id for job_id in asked if job_id not in finished]
    if missing:
        st.warning(
            f"Without results of this kind, and left out: job {', '.join(map(str, missing))}.",
            icon=":material/search_off:",
        )
    options = list(finished)
    names = picker_names(list(finished.values()))
    st.multiselect(
        "Finished jobs",
        options,
        format_func=names.__getitem__,
        max_selections=MOST_JOBS,
        placeholder="choose jobs to compare",
        **url.bind("jobs", asked[:MOST_JOBS], options),
    )
    return [finished[job_id] for job_id in asked[:MOST_JOBS] if job_id in finished]


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
