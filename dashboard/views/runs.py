"""Training runs: the list, or with ``?runs=7,8`` in the address those runs side by side.

``?jobs=`` and ``?job=``, as pages of jobs link to results, stand for the runs that these jobs train.
"""

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.live import STEADY
from dashboard.problems import guarded
from dashboard.queries import runs as run_queries
from dashboard.views.run_list import run_list
from dashboard.views.runs_compared import runs_compared


def page() -> None:
    st.html(STEADY)
    numbers = _asked()
    if numbers:
        runs_compared(numbers)
    else:
        run_list()


def _asked() -> list[int]:
    asked = [*url.integers("runs"), *url.integers("run")]
    jobs = [*url.integers("jobs"), *url.integers("job")]
    if jobs:
        with reading() as conn:
            asked += run_queries.of_jobs(conn, jobs)
    asked = list(dict.fromkeys(asked))
    for name in ("run", "jobs", "job"):
        if name in st.query_params:
            url.write("runs", asked)
            url.write(name, None)
    return asked


guarded(page)
