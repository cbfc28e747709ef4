"""The list of jobs: filters in the address, a table that renews itself, pages by job number."""

import json
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.formats import NOTHING, count, duration, told_apart
from dashboard.page_turning import page_buttons
from dashboard.pages import JOBS
from dashboard.problems import show
from dashboard.queries import jobs as job_queries
from dashboard.queries.jobs import Filters, JobLine
from services.contracts.errors import KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.states import JobState

PAGE_ROWS = 25
# What fits into the columns; a cell has no text that appears on hover.
LABEL_LETTERS, MODEL_LETTERS, DATASET_LETTERS = 16, 29, 19
DOWNLOAD_ROWS = 10_000
RENEW_S = 2
STATE_COLOURS = {
    JobState.QUEUED: "gray",
    JobState.RUNNING: "blue",
    JobState.CANCELLING: "orange",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
}
FIRST_COMMAND = (
    "keyhole submit gradient_scale --model builtin:smollm2-135m-instruct --dataset builtin:python-docs --wait"
)


def job_list() -> None:
    st.title("Jobs")
    filters = _filters()
    st.fragment(_live, run_every=RENEW_S)(filters)
    _downloads(filters)


def _filters() -> Filters:
    with reading() as conn:
        models = job_queries.models(conn)
    text, kind, state, model = st.columns([3, 2, 2, 5])
    values = {
        "text": text.text_input(
            "Search",
            key="text",
            placeholder="number, label, model or data set",
            on_change=_first_page,
            bind="query-params",
            persist_state="session",
        ),
        "kind": _choice(kind, "Kind", "kind", list(KINDS)),
        "state": _choice(state, "State", "state", [str(state) for state in JobState]),
        "model": _choice(model, "Model", "model", models),
    }
    return Filters(**(values | {"text": values["text"] or ""}))


def _choice(column: st.delta_generator.DeltaGenerator, label: str, key: str, options: list[str]) -> str | None:
    return column.selectbox(
        label,
        options,
        index=None,
        key=key,
        placeholder="any",
        on_change=_first_page,
        bind="query-params",
        persist_state="session",
    )


def _first_page() -> None:
    for cursor in ("before", "after"):
        st.query_params.pop(cursor, None)


def _live(filters: Filters) -> None:
    """The part that renews itself. A failing database leaves a sentence, and the next run tries again."""
    try:
        with reading() as conn:
            counts = job_queries.state_counts(conn)
            page = job_queries.job_page(
                conn, filters, before=url.integer("before"), after=url.integer("after"), limit=PAGE_ROWS
            )
    except KeyholeError as error:
        show(error)
        return
    _counts(counts)
    if not page.lines:
        _nothing(filters, any_job=bool(counts))
        return
    _open_selected()
    _table(page.lines)
    page_buttons(page, lambda line: line.job_id)


def _counts(counts: dict[str, int]) -> None:
    with st.container(horizontal=True, gap="small"):
        for state, colour in STATE_COLOURS.items():
            if counts.get(state) or state in (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED):
                number = counts.get(state, 0)
                st.badge(f"{count(number)} {state}", color=colour if number else "gray")


def _nothing(filters: Filters, any_job: bool) -> None:
    if any_job and filters != Filters():
        st.info("No job matches these filters. Clear one of them to see more.", icon=":material/filter_alt_off:")
    elif any_job:
        st.info("There are no jobs on this page of the list.")
        st.page_link(JOBS, label="To the newest jobs")
    else:
        st.info("There are no jobs yet. This command submits the first one:", icon=":material/rocket_launch:")
        st.code(FIRST_COMMAND, language="bash")


def _open_selected() -> None:
    """Open the job whose row was clicked; the list may have moved since, so the click is looked up in the last one."""
    listed = st.session_state.get("listed", [])
    cells = st.session_state.get("job_table", {}).get("selection", {}).get("cells", [])
    if cells and cells[0][0] < len(listed):
        st.switch_page(JOBS, query_params={"job": str(listed[cells[0][0]])})


def _table(lines: list[JobLine]) -> None:
    st.session_state["listed"] = [line.job_id for line in lines]
    labels = told_apart((line.label or "" for line in lines), LABEL_LETTERS)
    models = told_apart((line.model for line in lines), MODEL_LETTERS)
    datasets = told_apart((line.dataset for line in lines), DATASET_LETTERS)
    frame = pd.DataFrame(
        {
            "job": [line.job_id for line in lines],
            "state": [[line.state] for line in lines],
            "progress": [100 * line.shards_done / line.shards if line.shards else 0 for line in lines],
            "label": [labels[line.label or ""] for line in lines],
            "model": [models[line.model] for line in lines],
            "dataset": [datasets[line.dataset] for line in lines],
            "kind": [line.kind for line in lines],
            "rows": [line.rows for line in lines],
            "duration": [NOTHING if line.duration_s is None else duration(line.duration_s) for line in lines],
            "created": [line.created_at for line in lines],
        }
    )
    column = st.column_config
    st.dataframe(
        frame,
        key="job_table",
        hide_index=True,
        height=38 + 36 * len(lines),
        row_height=36,
        on_select="rerun",
        selection_mode="single-cell",
        alt="Jobs, newest first. Click a row to open the job.",
        column_config={
            "job": column.NumberColumn("Job", format="%d", width=50, pinned=True),
            "state": column.MultiselectColumn(
                "State", width=100, options=list(STATE_COLOURS), color=list(STATE_COLOURS.values())
            ),
            "progress": column.ProgressColumn(
                "Progress", help="share of shards done", format="%.0f %%", min_value=0, max_value=100, width=105
            ),
            "label": column.TextColumn("Label", width=140),
            "model": column.TextColumn("Model", width=248),
            "dataset": column.TextColumn("Data set", width=172),
            "kind": column.TextColumn("Kind", width=143),
            "rows": column.NumberColumn("Rows", format="localized", width=85),
            "duration": column.TextColumn("Duration", width=95, alignment="right"),
            "created": column.DatetimeColumn("Submitted", format="distance", width=125),
        },
    )
    st.caption("Click a row to open the job, with its label, model and data set in full.")


def _downloads(filters: Filters) -> None:
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "CSV",
            lambda: pd.DataFrame(_records(filters)).to_csv(index=False),
            file_name="keyhole-jobs.csv",
            mime="text/csv",
            icon=":material/download:",
            help=f"all jobs that match the filters, up to {DOWNLOAD_ROWS:,}",
            on_click="ignore",
            type="tertiary",
        )
        st.download_button(
            "JSON",
            lambda: json.dumps(_records(filters), default=str, indent=1),
            file_name="keyhole-jobs.json",
            mime="application/json",
            icon=":material/download:",
            on_click="ignore",
            type="tertiary",
        )


def _records(filters: Filters) -> list[dict[str, object]]:
    with reading() as conn:
        return [asdict(line) for line in job_queries.job_page(conn, filters, limit=DOWNLOAD_ROWS).lines]
