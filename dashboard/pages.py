"""Which pages there are: jobs, suites, and one result page per job kind."""

import streamlit as st

JOBS = "views/jobs.py"
SUITES = "views/suites.py"
PLAYGROUND = "views/playground.py"
RESULTS = {  # page by job kind
    "gradient_scale": "views/gradient_scale.py",
    "attention_profile": "views/attention_profile.py",
    "buried_keys": "views/buried_keys.py",
    "jacobian_spectrum": "views/jacobian_spectrum.py",
    "ratchet": "views/ratchet.py",
    "shared_routing": "views/shared_routing.py",
    "pattern_stability": "views/pattern_stability.py",
    "entropy_bound": "views/entropy_bound.py",
    "calibration": "views/calibration.py",
}
_TITLES = {
    JOBS: ("Jobs", ":material/list:"),
    SUITES: ("Suites", ":material/library_books:"),
    "views/gradient_scale.py": ("Gradient scale", ":material/stacked_line_chart:"),
    "views/attention_profile.py": ("Attention profile", ":material/visibility:"),
    "views/buried_keys.py": ("Buried keys", ":material/travel_explore:"),
    "views/jacobian_spectrum.py": ("Jacobian spectrum", ":material/blur_linear:"),
    "views/ratchet.py": ("Ratchet", ":material/sync:"),
    "views/pattern_stability.py": ("Pattern stability", ":material/compare_arrows:"),
    "views/entropy_bound.py": ("Entropy bound", ":material/compress:"),
    PLAYGROUND: ("Playground", ":material/play_circle:"),
    "views/shared_routing.py": ("Shared routing", ":material/merge:"),
    "views/calibration.py": ("Calibration", ":material/balance:"),
}


def all_pages() -> list[st.Page]:
    return [_page(JOBS, default=True), _page(SUITES), *(_page(path) for path in RESULTS.values()), _page(PLAYGROUND)]


def _page(path: str, default: bool = False) -> st.Page:
    title, icon = _TITLES[path]
    return st.Page(path, title=title, icon=icon, default=default)
