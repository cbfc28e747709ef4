"""Suites: what was submitted together, how far it is, and the way to each result. ``?suite=7`` opens one."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, count, duration, markdown_text, moment, shortened
from dashboard.live import STEADY
from dashboard.pages import JOBS, RESULTS, SUITES, SWEEPS
from dashboard.problems import guarded, show
from dashboard.queries import suites as suite_queries
from dashboard.queries.suites import Member, Stage, SuiteLine
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.job_list import RENEW_S, STATE_COLOURS
from dashboard.views.suite_width_growth import width_growth
from services.contracts.errors import KeyholeError
from services.contracts.states import TERMINAL_STATES, JobState

STAGE_COLOURS = {"waiting": "grey", "submitted": "green", "skipped": "orange"}
COMMAND = "keyhole submit suite --preset demo/tour --wait"


def page() -> None:
    st.html(STEADY)
    suite_id = url.integer("suite")
    if suite_id is None:
        st.title("Suites")
        st.markdown("Jobs that were submitted together, on one model or a series of models, in one stage or several.")
        text = st.text_input("Search", key="text", placeholder="part of the name", bind="query-params")
        st.fragment(_list, run_every=RENEW_S)(text or "")
    else:
        st.page_link(SUITES, label="All suites", icon=":material/arrow_back:", query_params={})
        st.fragment(_one, run_every=RENEW_S)(suite_id)
        width_growth(suite_id)


def _list(text: str) -> None:
    try:
        with reading() as conn:
            found = suite_queries.suites(conn, text)
    except KeyholeError as error:
        show(error)
        return
    if not found:
        if text:
            st.info("No suite has that in its name.", icon=":material/filter_alt_off:")
        else:
            st.info("There are no suites yet. This command submits one:", icon=":material/rocket_launch:")
            st.code(COMMAND, language="bash")
        return
    _open_selected("suite_table", "suites_listed", SUITES, "suite")
    st.session_state["suites_listed"] = [line.id for line in found]
    st.dataframe(
        _suite_frame(found),
        key="suite_table",
        hide_index=True,
        height=rows_height(len(found), at_most=20),
        on_select="rerun",
        selection_mode="single-cell",
        alt="Suites, newest first. Click a row to open the suite.",
        column_config={
            "Suite": st.column_config.NumberColumn(format="%d", width=60, pinned=True),
            "Name": st.column_config.TextColumn(width=360),
            "Progress": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0, max_value=100, width=120, help="share of shards done"
            ),
            "Submitted": st.column_config.DatetimeColumn(format="distance", width=140),
        },
    )
    st.caption("Click a row to open the suite.")
    values = {"text": text, "limit": suite_queries.MOST_SUITES}
    sql_and_data("suites", "list", as_text(suite_queries.SUITES, **values), pd.DataFrame(map(asdict, found)))


def _suite_frame(found: Sequence[SuiteLine]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Suite": [line.id for line in found],
            "Name": [shortened(line.name, 60) for line in found],
            "Progress": [_percent(line.shards_done, line.shards) for line in found],
            "Jobs": [line.jobs for line in found],
            "Succeeded": [line.succeeded for line in found],
            "Failed": [line.failed for line in found],
            "Cancelled": [line.cancelled for line in found],
            "Stages to come": [line.stages_waiting for line in found],
            "Models": [line.models for line in found],
            "By": [line.submitted_by or NOTHING for line in found],
            "Submitted": [line.created_at for line in found],
        }
    )


def _one(suite_id: int) -> None:
    try:
        with reading() as conn:
            members = suite_queries.members(conn, suite_id)
            head = suite_queries.head(conn, suite_id)
            stages = suite_queries.stages(conn, suite_id)
    except KeyholeError as error:
        show(error)
        return
    st.title(f"Suite {suite_id}")
    if head is None or not members:
        st.warning(f"There is no suite {suite_id}, or its jobs were deleted.", icon=":material/search_off:")
        return
    st.markdown(f"**{markdown_text(head.name)}**")
    datasets = dict.fromkeys(shortened(member.dataset, 60) for member in members)
    st.text(f"over {', '.join(datasets)}")
    submitter = f" by {markdown_text(head.submitted_by)}" if head.submitted_by else ""
    st.caption(f"Submitted {moment(head.created_at)}{submitter}")
    _counts(members)
    if head.sweep_id is not None:
        st.page_link(
            SWEEPS, label="What the sweep found", icon=":material/grid_on:", query_params={"sweep": str(head.sweep_id)}
        )
    _open_selected("member_table", "members_listed", JOBS, "job")
    st.session_state["members_listed"] = [member.job_id for member in members]
    st.dataframe(
        _member_frame(members, staged=bool(stages)),
        key="member_table",
        hide_index=True,
        height=rows_height(len(members), at_most=30),
        on_select="rerun",
        selection_mode="single-cell",
        alt="The jobs of the suite. Click a row to open the job.",
        column_config={
            "Job": st.column_config.NumberColumn(format="%d", width=60, pinned=True),
            "State": st.column_config.MultiselectColumn(
                width=110, options=list(STATE_COLOURS), color=list(STATE_COLOURS.values())
            ),
            "Progress": st.column_config.ProgressColumn(format="%.0f %%", min_value=0, max_value=100, width=120),
            "Rows": st.column_config.NumberColumn(format="localized", width=100),
            "Phase": st.column_config.TextColumn(width=120),
            "Took": st.column_config.TextColumn(width=100, alignment="right"),
            "Model": st.column_config.TextColumn(width=330),
        },
    )
    st.caption("Click a row to open the job. *Stood before*: the same job was there already, and answers here too.")
    _later(stages)
    _results(members)
    for member in members:
        if member.error_message:
            told = f"Job {member.job_id}, {member.kind}: {shortened(member.error_message, 400)}"
            st.error(markdown_text(told), icon=":material/error:")
    sql_and_data(
        "suite", str(suite_id), as_text(suite_queries.MEMBERS, suite=suite_id), pd.DataFrame(map(asdict, members))
    )
    waiting = any(stage.state == "waiting" for stage in stages)
    if not waiting and all(JobState(member.state) in TERMINAL_STATES for member in members):
        st.caption("All jobs of this suite have ended.")


def _later(stages: Sequence[Stage]) -> None:
    """What comes, or came, after the first stage."""
    if not stages:
        return
    st.subheader("Stages after the first")
    told = {
        "Stage": [stage.number for stage in stages],
        "State": [[stage.state] for stage in stages],
        "Kinds": [", ".join(stage.kinds) for stage in stages],
        "Models": [shortened(", ".join(stage.models), 64) for stage in stages],
        "Submitted": [stage.submitted_at for stage in stages],
    }
    st.dataframe(
        pd.DataFrame(told),
        hide_index=True,
        height=rows_height(len(stages), at_most=10),
        alt="Stages after the first, with their state.",
        column_config={
            "Stage": st.column_config.NumberColumn(format="%d", width=60),
            "State": st.column_config.MultiselectColumn(
                width=110, options=list(STAGE_COLOURS), color=list(STAGE_COLOURS.values())
            ),
            "Submitted": st.column_config.DatetimeColumn(format="distance", width=140),
        },
    )
    for stage in stages:
        if stage.detail:
            text = f"Stage {stage.number} {'was skipped' if stage.state == 'skipped' else 'waits'}: {stage.detail}"
            st.warning(markdown_text(shortened(text, 400)), icon=":material/front_hand:")


def _counts(members: Sequence[Member]) -> None:
    with st.container(horizontal=True, gap="small"):
        for state, colour in STATE_COLOURS.items():
            number = sum(member.state == state for member in members)
            if number:
                st.badge(f"{count(number)} {state}", color=colour)


def _member_frame(members: Sequence[Member], *, staged: bool) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **({"Stage": [member.stage for member in members]} if staged else {}),
            "Job": [member.job_id for member in members],
            "Kind": [member.kind for member in members],
            "State": [[member.state] for member in members],
            "Progress": [_percent(member.shards_done, member.shards) for member in members],
            "Phase": [_phase(member) for member in members],
            "Rows": [member.rows for member in members],
            "Took": [NOTHING if member.duration_s is None else duration(member.duration_s) for member in members],
            "Stood before": [member.reused for member in members],
            "Model": [shortened(member.model, 64) for member in members],
        }
    )


def _phase(member: Member) -> str:
    if member.stopped is not None:
        return "given up"
    return member.phase if member.state == JobState.RUNNING else ""


def _results(members: Sequence[Member]) -> None:
    """A link to the page of every kind, with all of the suite's finished jobs of it."""
    finished: dict[str, list[int]] = {}
    for member in members:
        if member.state == JobState.SUCCEEDED and member.kind in RESULTS:
            finished.setdefault(member.kind, []).append(member.job_id)
    if finished:
        st.subheader("Results")
        with st.container(horizontal=True, gap="small"):
            for kind, job_ids in finished.items():
                label = f"{kind.replace('_', ' ').capitalize()} ({len(job_ids)})"
                st.page_link(RESULTS[kind], label=label, query_params={"jobs": ",".join(map(str, job_ids[:6]))})


def _open_selected(table: str, listed: str, target: str, parameter: str) -> None:
    numbers = st.session_state.get(listed, [])
    cells = st.session_state.get(table, {}).get("selection", {}).get("cells", [])
    if cells and cells[0][0] < len(numbers):
        st.switch_page(target, query_params={parameter: str(numbers[cells[0][0]])})


def _percent(done: int, of: int) -> float:
    return 100 * done / of if of else 0.0


guarded(page)
