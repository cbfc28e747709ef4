"""Which pages there are: the job list, and one result page per job kind."""

import streamlit as st

JOBS = "views/jobs.py"
RESULTS = {  # page by job kind
    "gradient_scale": "views/gradient_scale.py",
    "attention_profile": "views/attention_profile.py",
}
_TITLES = {
    JOBS: ("Jobs", ":material/list:"),
    "views/gradient_scale.py": ("Gradient scale", ":material/stacked_line_chart:"),
    "views/attention_profile.py": ("Attention profile", ":material/visibility:"),
}


def all_pages() -> list[st.Page]:
    return [_page(JOBS, default=True), *(_page(path) for path in RESULTS.values())]


def _page(path: str, default: bool = False) -> st.Page:
    title, icon = _TITLES[path]
    return st.Page(path, title=title, icon=icon, default=default)
