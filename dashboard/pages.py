"""Which pages there are, and where they stand in the menu."""

import streamlit as st

JOBS = "views/jobs.py"
SUITES = "views/suites.py"
PLAYGROUND = "views/playground.py"
RUNS = "views/runs.py"
CHECKPOINTS = "views/checkpoints.py"
NATQ_TRAINING = "views/natq_training.py"
SWEEPS = "views/sweeps.py"
ALERTS = "views/alerts.py"
RESULTS = {  # page by job kind
    "gradient_scale": "views/gradient_scale.py",
    "jacobian_spectrum": "views/jacobian_spectrum.py",
    "ratchet": "views/ratchet.py",
    "buried_keys": "views/buried_keys.py",
    "calibration": "views/calibration.py",
    "attention_profile": "views/attention_profile.py",
    "entropy_bound": "views/entropy_bound.py",
    "pattern_stability": "views/pattern_stability.py",
    "shared_routing": "views/shared_routing.py",
    "training": RUNS,
}
MENU = {  # by section; pages of the section without a name stand in the menu themselves
    "": (JOBS, SUITES, PLAYGROUND),
    "Training": (RUNS, CHECKPOINTS, RESULTS["pattern_stability"], NATQ_TRAINING, SWEEPS, ALERTS),
    "Gradients": tuple(
        RESULTS[kind] for kind in ("gradient_scale", "jacobian_spectrum", "ratchet", "buried_keys", "calibration")
    ),
    "Patterns": tuple(RESULTS[kind] for kind in ("attention_profile", "entropy_bound")),
    "Interventions": (RESULTS["shared_routing"],),
}
_TITLES = {
    JOBS: ("Jobs", ":material/list:"),
    SUITES: ("Suites", ":material/library_books:"),
    "views/gradient_scale.py": ("Gradient scale", ":material/stacked_line_chart:"),
    "views/jacobian_spectrum.py": ("Jacobian spectrum", ":material/blur_linear:"),
    "views/ratchet.py": ("Ratchet", ":material/sync:"),
    "views/buried_keys.py": ("Buried keys", ":material/travel_explore:"),
    "views/calibration.py": ("Calibration", ":material/balance:"),
    "views/attention_profile.py": ("Attention profile", ":material/visibility:"),
    "views/entropy_bound.py": ("Entropy bound", ":material/compress:"),
    "views/pattern_stability.py": ("Stability", ":material/compare_arrows:"),
    "views/shared_routing.py": ("Shared routing", ":material/merge:"),
    RUNS: ("Runs", ":material/show_chart:"),
    CHECKPOINTS: ("Checkpoints", ":material/save:"),
    NATQ_TRAINING: ("NATQ: training", ":material/science:"),
    SWEEPS: ("Sweeps", ":material/grid_on:"),
    ALERTS: ("Alerts", ":material/notifications:"),
    PLAYGROUND: ("Playground", ":material/play_circle:"),
}


def menu() -> dict[str, list[st.Page]]:
    return {section: [_page(path) for path in paths] for section, paths in MENU.items()}


def _page(path: str) -> st.Page:
    title, icon = _TITLES[path]
    return st.Page(path, title=title, icon=icon, default=path == JOBS)
