"""One checkpoint: its source to copy, commands, the jobs that measured it, and the others of its run."""

from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, byte_size, count, markdown_text, moment, shortened
from dashboard.pages import CHECKPOINTS, JOBS, RESULTS, RUNS
from dashboard.queries import checkpoints as queries
from dashboard.queries import run_jobs
from dashboard.queries.checkpoints import CheckpointLine
from dashboard.queries.run_jobs import MeasuringJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.checkpoint_list import CHECKPOINT_COLUMNS, checkpoint_frame
from dashboard.views.job_list import STATE_COLOURS
from services.contracts.states import JobState

MOST_LINKED = 6  # as many as a page of results compares


def checkpoint_detail(number: int) -> None:
    st.page_link(CHECKPOINTS, label="All checkpoints", icon=":material/arrow_back:", query_params={})
    with reading() as conn:
        found = queries.checkpoint(conn, number)
        others = queries.of_run(conn, found.run_id) if found else []
        jobs = run_jobs.of_checkpoint(conn, number) if found else []
    st.title(f"Checkpoint {number}")
    if found is None:
        st.warning(
            f"There is no checkpoint {number}. Those kept only for resuming go when a newer one is stored.",
            icon=":material/search_off:",
        )
        return
    seed = "" if found.seed is None else f", seed {found.seed}"
    st.markdown(f"**{markdown_text(found.run)}**, step {found.step:,}")
    st.text(f"{found.variant or 'imported'}{seed}: {found.model_type}")
    st.caption(f"Stored {moment(found.created_at)}; kept because: {', '.join(found.reasons) or NOTHING}")
    with st.container(horizontal=True, gap="small"):
        runs = str(found.run_id)
        st.page_link(RUNS, label=f"Run {runs}", icon=":material/show_chart:", query_params={"runs": runs})
        st.page_link(CHECKPOINTS, label="Checkpoints of this run", icon=":material/save:", query_params={"runs": runs})
    _numbers(found)
    _commands(found)
    _jobs(found, jobs)
    _others(found, others)


def _numbers(found: CheckpointLine) -> None:
    loss = found.validation_loss_nats
    figures = [
        ("Step", count(found.step), "optimizer steps taken"),
        ("Validation loss", NOTHING if loss is None else f"{loss:.4f}", "nats per held-out token at this step"),
        ("Size", byte_size(found.bytes) if found.bytes else NOTHING, "of its files; equal parts are stored once"),
        ("Resumable", "yes" if found.resumable else "no", "whether the optimizer's state is with it"),
    ]
    for column, (name, value, told) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(name, value, help=told)


def _commands(found: CheckpointLine) -> None:
    st.subheader("Use it")
    source = f"checkpoint:{found.checkpoint_id}"
    st.caption("As the model of any job, by its number or by run and step:")
    st.code(f"{source}\nrun:{found.run_id}@{found.step}", language=None)
    if found.source:
        st.caption("Imported, not stored here: its files lie at")
        st.code(found.source, language=None)
    st.caption("Probe it, or write it to a folder that `transformers` loads:")
    st.code(
        f"keyhole submit attention_profile --model {source} --dataset builtin:python-docs --wait\n"
        f"keyhole checkpoint-export {found.checkpoint_id} --to ./checkpoint-{found.checkpoint_id}",
        language="bash",
    )
    st.caption(f"Identity: {markdown_text(found.identity)}")


def _jobs(found: CheckpointLine, jobs: list[MeasuringJob]) -> None:
    st.subheader("Measured by")
    if not jobs:
        st.caption("No job has measured this checkpoint yet.")
        return
    finished: dict[str, list[int]] = {}
    for job in jobs:
        if job.state == JobState.SUCCEEDED and job.kind in RESULTS:
            finished.setdefault(job.kind, []).append(job.job_id)
    with st.container(horizontal=True, gap="small"):
        for kind, numbers in finished.items():
            label = f"{kind.replace('_', ' ').capitalize()} ({len(numbers)})"
            st.page_link(RESULTS[kind], label=label, query_params={"jobs": ",".join(map(str, numbers[:MOST_LINKED]))})
    shown = pd.DataFrame(
        {
            "Job": [job.job_id for job in jobs],
            "State": [[job.state] for job in jobs],
            "Kind": [job.kind for job in jobs],
            "Label": [shortened(job.label or "", 40) for job in jobs],
            "Data set": [shortened(job.dataset, 50) for job in jobs],
            "Submitted": [job.created_at for job in jobs],
        }
    )
    selection = st.dataframe(
        shown,
        key="measured_by",
        hide_index=True,
        placeholder="–",
        height=rows_height(len(shown)),
        on_select="rerun",
        selection_mode="single-cell",
        alt="Jobs that measured this checkpoint. Click a row to open the job.",
        column_config={
            "Job": st.column_config.NumberColumn(format="%d", width=60, pinned=True),
            "State": st.column_config.MultiselectColumn(
                width=110, options=list(STATE_COLOURS), color=list(STATE_COLOURS.values())
            ),
            "Submitted": st.column_config.DatetimeColumn(format="distance", width=140),
        },
    )["selection"]
    if selection["cells"] and selection["cells"][0][0] < len(jobs):
        st.switch_page(JOBS, query_params={"job": str(jobs[selection["cells"][0][0]].job_id)})
    st.caption("Models of equal files share their jobs. Click a row to open the job.")
    statement = as_text(run_jobs.OF_CHECKPOINT, checkpoint=found.checkpoint_id)
    sql_and_data("checkpoint", "jobs", statement, pd.DataFrame([asdict(job) for job in jobs]))


def _others(found: CheckpointLine, others: list[CheckpointLine]) -> None:
    st.subheader(f"Checkpoints of run {found.run_id}")
    st.dataframe(
        checkpoint_frame(others),
        key="others",
        hide_index=True,
        placeholder="–",
        height=rows_height(len(others)),
        column_config=CHECKPOINT_COLUMNS,
    )
    data = pd.DataFrame([asdict(other) for other in others])
    sql_and_data("checkpoint", "of-run", as_text(queries.OF_RUN, run=found.run_id), data)
