"""Cancel and retry through the API, for viewers who paste a token. The dashboard itself has none.

The token stays in this browser session's state: it is in no address, no log and no database.
"""

import os

import streamlit as st

from dashboard.problems import show
from dashboard.queries.jobs import Job
from services.client import Keyhole
from services.contracts.errors import KeyholeError
from services.contracts.states import JobState

CANCELLABLE = (JobState.QUEUED, JobState.RUNNING)
RETRIABLE = (JobState.FAILED, JobState.CANCELLED)


def actions(job: Job) -> None:
    """A button for what the job's state allows; nothing where it allows nothing."""
    if job.state in CANCELLABLE:
        _action(job.job_id, "Cancel", "cancel", ":material/cancel:")
    elif job.state in RETRIABLE:
        _action(job.job_id, "Retry", "retry", ":material/replay:")


def _action(job_id: int, label: str, verb: str, icon: str) -> None:
    with st.popover(f"{label} …", icon=icon):
        api_url = os.environ.get("KEYHOLE_API_URL")
        if not api_url:
            st.caption("The dashboard does not know the API. In a terminal:")
            st.code(f"keyhole {verb} {job_id}", language="bash")
            return
        token = st.text_input(
            "API token",
            type="password",
            key="api_token",
            persist_state="session",
            autocomplete="off",
            help="Scope submit; `keyhole token create` makes one. It is kept until this tab is closed.",
        )
        given = (token or "").strip()  # never an empty one: the client would look for the machine's own
        if st.button(f"{label} job {job_id}", type="primary", disabled=not given, key=f"do_{verb}") and given:
            _call(api_url, given, verb, job_id)


def _call(api_url: str, token: str, verb: str, job_id: int) -> None:
    try:
        with Keyhole(url=api_url, token=token) as client:
            job = client.job(job_id)
            job.cancel() if verb == "cancel" else job.retry()
    except KeyholeError as error:
        show(error)
    else:
        st.toast(f"Job {job_id} is {job.state}.")
        st.rerun()
