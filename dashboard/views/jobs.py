"""Jobs: the live list, or with ``?job=42`` in the address that job in detail."""

import streamlit as st

from dashboard import url
from dashboard.live import STEADY
from dashboard.problems import guarded
from dashboard.views.job_detail import job_detail
from dashboard.views.job_list import job_list


def page() -> None:
    st.html(STEADY)
    job_id = url.integer("job")
    if job_id is None:
        job_list()
    else:
        job_detail(job_id)


guarded(page)
