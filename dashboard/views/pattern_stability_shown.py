"""What the controls of the pattern-stability page select: a job's distances in one measure, of some runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.queries import pattern_stability as queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.stability import Checkpoint, Distances

KIND = "pattern_stability"
MEASURES = {
    "js_nats": "Jensen–Shannon divergence (nats)",
    "total_variation": "total variation",
    "cosine": "cosine distance",
}
LABELS = {"js_nats": "JS (nats)", "total_variation": "total variation", "cosine": "cosine distance"}  # of axes
PAIRINGS = {
    "natural": "by index within a run, by assignment across",
    "index": "by index",
    "assignment": "by assignment",
}
ALL_LAYERS = "mean"


@dataclass(frozen=True)
class Shown:
    """What the controls select; distances by layer and pair, of the checkpoints of the chosen runs."""

    job: FinishedJob
    measure: str
    pairing: str
    layer: int | None  # none means the mean over layers
    checkpoints: list[Checkpoint]
    by_layer: Mapping[int, Distances]

    @property
    def label(self) -> str:
        return LABELS[self.measure]

    @property
    def distances(self) -> Distances:
        """Of the chosen layer, or the mean over all."""
        if self.layer is not None:
            return self.by_layer[self.layer]
        pairs = next(iter(self.by_layer.values()), {})
        return {pair: sum(of[pair] for of in self.by_layer.values()) / len(self.by_layer) for pair in pairs}

    @property
    def sql(self) -> str:
        return as_text(queries.with_measure(queries.LAYER_DISTANCES, self.measure), job=self.job.job_id)


def shown(job: FinishedJob) -> Shown:
    """The controls, and what they select."""
    left, middle, right = st.columns([2, 2, 1])
    with left:
        st.selectbox(
            "Distance",
            list(MEASURES),
            format_func=MEASURES.__getitem__,
            **url.bind("measure", st.query_params.get("measure"), list(MEASURES)),
        )
    with middle:
        st.selectbox(
            "Heads paired",
            list(PAIRINGS),
            format_func=PAIRINGS.__getitem__,
            **url.bind("pairing", st.query_params.get("pairing"), list(PAIRINGS)),
        )
    measure, pairing = st.session_state["measure_choice"], st.session_state["pairing_choice"]
    with reading() as conn:
        checkpoints = queries.checkpoints(conn, job.job_id)
        rows = queries.layer_distances(conn, job.job_id, measure)
    layers = sorted({row.layer for row in rows})
    with right:
        options: list[int | str] = [ALL_LAYERS, *layers]
        layer = url.integer("layer")
        st.selectbox("Layer", options, **url.bind("layer", ALL_LAYERS if layer is None else layer, options))
    chosen_layer = st.session_state["layer_choice"]
    checkpoints = _of_chosen_runs(checkpoints)
    runs = {each.number: each.run for each in checkpoints}
    by_layer: dict[int, dict[tuple[int, int], float]] = {layer: {} for layer in layers}
    for row in rows:
        if row.first in runs and row.second in runs:
            across = runs[row.first] != runs[row.second]
            assigned = pairing == "assignment" or (pairing == "natural" and across)
            by_layer[row.layer][row.first, row.second] = row.by_assignment if assigned else row.by_index
    return Shown(job, measure, pairing, None if chosen_layer == ALL_LAYERS else chosen_layer, checkpoints, by_layer)


def _of_chosen_runs(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those of the runs chosen in the picker, or all; runs are numbered in the address, since names may be any text."""
    runs = list(dict.fromkeys(each.run for each in checkpoints))
    if len(runs) < 2:
        return list(checkpoints)
    asked = [number for number in url.integers("runs") if number < len(runs)]
    st.multiselect(
        "Runs",
        range(len(runs)),
        format_func=runs.__getitem__,
        placeholder="all runs",
        **url.bind("runs", asked, range(len(runs))),
    )
    return [each for each in checkpoints if not asked or runs.index(each.run) in asked]
