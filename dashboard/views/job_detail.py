"""One job: progress, phases, error, parameters, environment, checks, attempts and history; renews itself while open."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.connection import reading
from dashboard.formats import NOTHING, count, duration, markdown_text, markdown_words, moment, shortened
from dashboard.pages import JOBS, RESULTS
from dashboard.phases import EVENT_TYPES, QUEUED, phase_marks, phase_seconds
from dashboard.problems import show
from dashboard.queries import jobs as job_queries
from dashboard.queries.jobs import Attempt, Event, Job
from dashboard.tables import nested, table
from dashboard.views.job_actions import actions
from dashboard.views.job_list import RENEW_S, STATE_COLOURS
from services.contracts.errors import KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.states import TERMINAL_STATES, JobState


def job_detail(job_id: int) -> None:
    st.page_link(JOBS, label="All jobs", icon=":material/arrow_back:", query_params={})
    with reading() as conn:
        job = job_queries.job(conn, job_id)
    if job is None:
        st.title(f"Job {job_id}")
        st.warning(f"There is no job {job_id}. It may have been deleted.", icon=":material/search_off:")
        return
    st.title(f"Job {job.job_id}")
    if job.label:
        st.markdown(f"**{markdown_text(job.label)}**")
    st.text(f"{job.kind} of {shortened(job.model, 90)} over {shortened(job.dataset, 60)}")
    submitter = f" by {markdown_text(job.submitted_by)}" if job.submitted_by else ""
    st.caption(f"Submitted {moment(job.created_at)}{submitter}")
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        trains = KINDS[job.kind].queue == "training" if job.kind in KINDS else False
        has_result = (trains or job.state == JobState.SUCCEEDED) and job.kind in RESULTS
        label = "Open the run" if trains else "Open the result"
        if has_result and st.button(label, type="primary", icon=":material/insights:"):
            st.switch_page(RESULTS[job.kind], query_params={"jobs": str(job_id)})
        actions(job)
    open_still = JobState(job.state) not in TERMINAL_STATES
    st.fragment(_live, run_every=RENEW_S if open_still else None)(job_id, job.state)


def _live(job_id: int, state_before: str) -> None:
    try:
        with reading() as conn:
            job = job_queries.job(conn, job_id)
            attempts = job_queries.attempts(conn, job_id)
            events = job_queries.events(conn, job_id)
            marks = phase_marks(job.created_at, job_queries.events_of_types(conn, job_id, EVENT_TYPES)) if job else []
    except KeyholeError as error:
        show(error)
        return
    if job is None or job.state != state_before:
        st.rerun()  # other buttons, or nothing more to renew
    _head(job, events, marks)
    _error(job)
    _numbers(job, attempts, phase_seconds(marks, job.finished_at or job.now))
    parameters, environment, checks, tries, history = st.tabs(
        ["Parameters", "Environment", "Checks", f"Attempts ({len(attempts)})", "History"]
    )
    with parameters:
        table(
            [
                ("kind", f"{job.kind}, version {job.version}"),
                ("model", job.model),
                ("model identity", job.model_identity),
                ("data set", job.dataset),
                ("data set identity", job.dataset_identity),
                *nested(in_order(job)),
                ("priority", job.priority),
                ("time limit", duration(job.time_limit_s)),
            ],
            key="parameters",
        )
    with environment:
        table(nested(job.environment), key="environment", empty="Recorded when a worker has loaded the model.")
    with checks:
        st.caption("Parity of the attention seam with the model's own attention, and the probe's self-checks.")
        table(nested(job.checks), key="checks", empty="Stored when the first shard is done.")
    with tries:
        _attempts(attempts, job)
    with history:
        _history(events)


def in_order(job: Job) -> dict[str, Any]:
    """The parameters in the order of their contract: the database keeps JSON objects in an order of its own."""
    kind = KINDS.get(job.kind)
    names = list(kind.parameters.model_fields) if kind else []
    known = {name: job.parameters[name] for name in names if name in job.parameters}
    return known | job.parameters


def _head(job: Job, events: Sequence[Event], marks: Sequence[tuple[datetime, str | None]]) -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.badge(job.state, color=STATE_COLOURS[JobState(job.state)])  # type: ignore[arg-type]  # colours by name
        st.caption(_phase_line(marks, job.finished_at or job.now))
    st.progress(job.shards_done / job.shards if job.shards else 0.0, text=_progress_line(job, events))


def _progress_line(job: Job, events: Sequence[Event]) -> str:
    parts = [f"{count(job.shards_done)} of {count(job.shards)} shards", f"{count(job.rows)} rows"]
    rate = shard_rate(events, job.now) if job.state == JobState.RUNNING else None
    if rate:
        left = (job.shards - job.shards_done) / rate
        rows_rate = rate * job.rows / job.shards_done if job.shards_done else 0
        parts += [f"{rows_rate:,.0f} rows/s", f"about {duration(left)} left"]
    return " · ".join(parts)


def shard_rate(events: Sequence[Event], now: datetime, window: int = 20) -> float | None:
    """Shards per second over the latest progress events (the last first), None before the second of an attempt."""
    recent: list[Event] = []
    for event in events:
        if event.type == "progress":
            recent.append(event)
        elif event.type in ("attempt", "queued") or len(recent) == window:
            break
    if len(recent) < 2:
        return None
    seconds = (now - recent[-1].at).total_seconds()
    shards = recent[0].data.get("shards_done", 0) - recent[-1].data.get("shards_done", 0)
    return shards / seconds if seconds > 0 and shards > 0 else None


def _phase_line(marks: Sequence[tuple[datetime, str | None]], end: datetime) -> str:
    """The phases with the time each took; the present one is bold."""
    _, present = marks[-1]
    words = []
    for phase, seconds in phase_seconds(marks, end).items():
        text = f"{markdown_text(phase)} {duration(seconds)}"
        words.append(f"**{text}**" if phase == present else text)
    return " → ".join(words)


def _error(job: Job) -> None:
    if not job.error_code:
        return
    st.error(
        f"**{markdown_text(job.error_code)}**: {markdown_words(job.error_message or '')}"
        + (f"\n\n{markdown_words(job.error_hint)}" if job.error_hint else ""),
        icon=":material/error:",
    )
    if job.error_traceback:
        with st.expander("Traceback", icon=":material/code:"):
            st.code(job.error_traceback, language="python", wrap_lines=True)


def _numbers(job: Job, attempts: Sequence[Attempt], lasted: Mapping[str, float]) -> None:
    numbers = st.columns(4)
    numbers[0].metric("Rows stored", count(job.rows))
    numbers[1].metric("Duration", duration(job.duration_s), help="since it first ran, or ran again after a retry")
    numbers[2].metric("Waited", duration(lasted.get(QUEUED, 0.0)), help="in the queue, all stays there together")
    numbers[3].metric(
        "Attempts", f"{len(attempts)}", help=f"the job fails after {job.max_attempts} that crashed or were lost"
    )


def _attempts(attempts: Sequence[Attempt], job: Job) -> None:
    if not attempts:
        st.caption("No worker has taken the job yet.")
        return
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "Attempt": attempt.number,
                    "Outcome": attempt.outcome or "works on it",
                    "Worker": attempt.worker,
                    "Device": attempt.device,
                    "Started": moment(attempt.started_at),
                    "Lasted": duration(((attempt.ended_at or job.now) - attempt.started_at).total_seconds()),
                    "Last heartbeat": moment(attempt.heartbeat_at),
                    "Detail": attempt.detail or NOTHING,
                }
                for attempt in attempts
            ]
        ),
        hide_index=True,
        key="attempts",
        column_config={"Attempt": st.column_config.NumberColumn(width=70)},
    )


def _history(events: Sequence[Event]) -> None:
    if len(events) == job_queries.LATEST_EVENTS:
        st.caption(f"The latest {len(events)} events. All of them: `analysis.job_event` in `keyhole sql`.")
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "Time": moment(event.at),
                    "Event": event.type,
                    "Detail": ", ".join(f"{name} {value}" for name, value in nested(event.data)),
                }
                for event in events
            ]
        ),
        hide_index=True,
        key="history",
        column_config={
            "Time": st.column_config.TextColumn(width=190),
            "Event": st.column_config.TextColumn(width=110),
            "Detail": st.column_config.TextColumn(width="large"),
        },
    )
