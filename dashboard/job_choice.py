"""Which finished jobs a result page shows: chosen in a picker, kept in the address."""

from collections.abc import Sequence

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.job_names import picker_names, titles
from dashboard.pages import JOBS
from dashboard.queries import jobs as job_queries
from dashboard.queries.jobs import FinishedJob

MOST_JOBS = 6


def chosen_jobs(
    kind: str, most: int = MOST_JOBS, options: str = "", model: str = "builtin:smollm2-135m-instruct"
) -> list[FinishedJob]:
    """The finished jobs of this kind in ``?jobs=`` or ``?job=``, the newest where none is named.

    Empty after telling what to do.

    The first command to submit such a job names ``model`` and has these ``options`` besides.
    """
    with reading() as conn:
        finished = {job.job_id: job for job in job_queries.finished_jobs(conn, kind)}
    if not finished:
        command = f"keyhole submit {kind} --model {model} --dataset builtin:python-docs"
        st.info(f"No {kind} job has succeeded yet. This command submits one:", icon=":material/rocket_launch:")
        st.code(" ".join([command, *([options] if options else []), "--wait"]), language="bash")
        st.page_link(JOBS, label="See the jobs that wait or run", icon=":material/list:")
        return []
    asked = _asked() or ([next(iter(finished))] if "jobs" not in st.query_params else [])
    missing = [job_id for job_id in asked if job_id not in finished]
    if missing:
        st.warning(
            f"Without results of this kind, and left out: job {', '.join(map(str, missing))}.",
            icon=":material/search_off:",
        )
    names, numbers = picker_names(list(finished.values())), list(finished)
    st.multiselect(
        "Finished jobs",
        numbers,
        format_func=names.__getitem__,
        max_selections=most,
        placeholder="choose jobs to compare" if most > 1 else "choose a job",
        **url.bind("jobs", asked[:most], numbers),
    )
    found = [finished[job_id] for job_id in asked[:most] if job_id in finished]
    if not found:
        told = "Choose finished jobs above; several are shown side by side." if most > 1 else "Choose a job above."
        st.info(told, icon=":material/arrow_upward:")
    return found


def _asked() -> list[int]:
    """Job numbers of the address. A job alone, as the page of jobs is addressed, joins the others under their name."""
    asked = list(dict.fromkeys([*url.integers("jobs"), *url.integers("job")]))
    if "job" in st.query_params:
        if asked:
            url.write("jobs", asked)
        url.write("job", None)
    return asked


def job_of_rows(jobs: Sequence[FinishedJob], label: str = "Job") -> FinishedJob:
    """Of which of the shown jobs single rows are shown: chosen in a picker if there are several, ``?rows=``."""
    if len(jobs) == 1:
        return jobs[0]
    ids = [job.job_id for job in jobs]
    picked = st.selectbox(
        label,
        ids,
        format_func=titles(jobs).__getitem__,
        label_visibility="collapsed",
        **url.bind("rows", url.integer("rows"), ids),
    )
    return next(job for job in jobs if job.job_id == picked)
