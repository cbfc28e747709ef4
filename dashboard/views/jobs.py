"""Jobs: the live list, or with ``?job=42`` in the address that job in detail."""

import streamlit as st

from dashboard import url
from dashboard.problems import guarded
from dashboard.views.job_detail import job_detail
from dashboard.views.job_list import job_list

# What renews itself every other second shall neither fade nor blink meanwhile.
STEADY = "<style>[data-stale=true] {opacity: 1 !important} [data-testid=stStatusWidget] {display: none}</style>"


def page() -> None:
    st.html(STEADY)
    job_id = url.integer("job")
    if job_id is None:
        job_list()
    else:
        job_detail(job_id)


guarded(page)
