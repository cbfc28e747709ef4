"""Spectral norms on the page of runs: of weights and of their updates, layers of one run or runs at one layer."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.curves import Curve, curves
from dashboard.charts.step_layers import layer_lines
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.queries import training_matrices as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.run_names import titles
from dashboard.training_metrics import digits

QUANTITIES = {
    "weight": "σ(W): largest singular value of the weight",
    "update": "σ(ΔW): largest singular value of the last update",
    "ratio": "σ(ΔW) / σ(W)",
}
LABELS = {"weight": "σ(W)", "update": "σ(ΔW)", "ratio": "σ(ΔW) / σ(W)"}
EVERY = "every layer"


def matrices(runs: Sequence[Run], of: Run) -> None:
    """``of`` is the run whose layers are shown. Nothing where no run has stored them."""
    numbers = [run.run_id for run in runs]
    with reading() as conn:
        names = queries.names(conn, numbers)
    if not names:
        return
    st.divider()
    st.subheader("Spectral norms")
    left, middle, right, last = st.columns([2, 3, 2, 1], vertical_alignment="bottom")
    with left:
        matrix = st.selectbox("Matrix", names, **url.bind("matrix", st.query_params.get("matrix"), names))
    with middle:
        options = list(QUANTITIES)
        quantity = st.selectbox(
            "Norm",
            options,
            format_func=QUANTITIES.__getitem__,
            **url.bind("norm", st.query_params.get("norm"), options),
        )
    with reading() as conn:
        layers = queries.layers(conn, numbers, matrix)
    choices: list[int | str] = [EVERY, *layers]
    with right:
        asked = url.integer("at")
        picked = st.selectbox(
            "Layer",
            choices,
            format_func=lambda each: each if isinstance(each, str) else f"layer {each} of every run",
            disabled=not layers,
            **url.bind("at", EVERY if asked is None else asked, choices),
        )
    with last:
        logarithmic = st.toggle(
            "Logarithmic", value=st.query_params.get("norms") == "log", key="norms_choice", on_change=_write_scale
        )
    _draw(runs, of, matrix, quantity, picked if isinstance(picked, int) else None, layers, logarithmic)


def _write_scale() -> None:
    url.write("norms", "log" if st.session_state["norms_choice"] else None)


def _draw(
    runs: Sequence[Run],
    of: Run,
    matrix: str,
    quantity: str,
    layer: int | None,
    layers: Sequence[int],
    logarithmic: bool,
) -> None:
    by_layer = layer is None and bool(layers)
    shown = [of] if by_layer else list(runs)
    statement, values = queries.curves_sql(
        [run.run_id for run in shown],
        matrix,
        quantity,
        layer=layer,
        series=len(layers) if by_layer else len(shown),
        start=int(url.number("start", 0, 0, max(1, *(run.steps_done for run in runs)))),
    )
    with reading() as conn:
        rows = queries.curves(conn, statement, values)
    label = f"{LABELS[quantity]} of {matrix}"
    if not rows:
        whose = f"run {of.run_id}" if by_layer else "these runs"
        st.caption(f"No {label} of {whose} is stored; of updates there is none at step 0.")
        return
    if by_layer:
        figure = layer_lines(rows, label, digits, logarithmic=logarithmic)  # type: ignore[arg-type]  # rows of layers
        told = f"{label} by layer, of run {of.run_id}."
    else:
        names, places = titles(shown), {run.run_id: place for place, run in enumerate(shown)}
        lines = []
        for number, points in groupby(rows, key=lambda point: point.run_id):
            of_run = list(points)
            lines.append(Curve(names[number], [p.step for p in of_run], [p.value for p in of_run], places[number]))
        figure = curves(lines, x_title="step", y_title=label, words=digits, logarithmic=logarithmic)
        told = f"{label}{'' if layer is None else f' in layer {layer}'}, run by run."
    st.plotly_chart(figure, key="matrices", config=CHART_CONFIG, alt=f"{label} by step; the numbers are in the CSV.")
    st.caption(f"{told} An update is the change by one step, learning rate included.")
    sql_and_data("runs", "matrices", as_text(statement, **values), pd.DataFrame([asdict(row) for row in rows]), figure)
