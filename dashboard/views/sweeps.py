"""Sweeps: the list, or with ``?sweep=3`` in the address what came of that one."""

import streamlit as st

from dashboard import url
from dashboard.live import STEADY
from dashboard.problems import guarded
from dashboard.views.sweep_detail import sweep_detail
from dashboard.views.sweep_list import sweep_list


def page() -> None:
    st.html(STEADY)
    number = url.integer("sweep")
    if number is None:
        sweep_list()
    else:
        sweep_detail(number)


guarded(page)
