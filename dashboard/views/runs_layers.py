"""Numbers of one run by layer and step, and by head at one step: its attention, and what a variant's solver logs."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ATTENTION_SCALE
from dashboard.charts.step_layers import layer_lines, layer_map
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.queries import training_metrics as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.run_names import titles
from dashboard.training_metrics import TrainingMetric, in_order, named

MAP, LINES = "map", "lines"


def layers_of_run(run: Run) -> None:
    """Nothing where the run has no numbers by layer."""
    with reading() as conn:
        found = {
            metric.name: metric for metric in queries.metrics(conn, [run.run_id]) if metric.of_layers or metric.of_heads
        }
    if not found:
        return
    st.subheader("By layer and head")
    names = in_order(list(found))
    left, right, _ = st.columns([3, 2, 3], vertical_alignment="bottom")
    with left:
        name = st.selectbox(
            "Number",
            names,
            format_func=lambda each: named(each).label,
            **url.bind("metric", st.query_params.get("metric"), names),
        )
    with right:
        view = st.selectbox("Shown as", [LINES, MAP], **url.bind("view", st.query_params.get("view"), [LINES, MAP]))
    metric, label = found[name], named(name)
    with reading() as conn:
        layers = queries.layer_count(conn, [run.run_id], name)
    if metric.of_layers:
        _by_step(run, label, layers, as_map=view == MAP)
    if metric.of_heads:
        _heads(run, label)


def run_of_rows(runs: Sequence[Run]) -> Run:
    """Of which of the shown runs layers are shown: chosen in a picker if there are several, ``?rows=``."""
    if len(runs) == 1:
        return runs[0]
    numbers = [run.run_id for run in runs]
    picked = st.selectbox(
        "Layers of", numbers, format_func=titles(runs).__getitem__, **url.bind("rows", url.integer("rows"), numbers)
    )
    return next(run for run in runs if run.run_id == picked)


def _by_step(run: Run, label: TrainingMetric, layers: int, *, as_map: bool) -> None:
    start = int(url.number("start", 0, 0, max(1, run.steps_done)))
    with reading() as conn:
        if as_map:
            statement, values = queries.LAYER_MAP, queries.layer_map_values(run.run_id, label.name, start, layers)
            cells = queries.layer_map(conn, values)
        else:
            statement, values = queries.layer_curves_sql(run.run_id, label.name, start, layers)
            cells = queries.points(conn, statement, values)
    if not cells:
        st.caption(f"No {label.label} by layer from step {start:,} on.")
        return
    draw = layer_map if as_map else layer_lines
    figure = draw(cells, label.label, label.words)  # type: ignore[arg-type]  # rows of layers have a layer
    st.plotly_chart(
        figure,
        key="by_layer",
        config=CHART_CONFIG,
        alt=f"{label.label} of run {run.run_id} by layer and step; the numbers are in the CSV.",
    )
    told = f"**{label.label}** of run {run.run_id}: {label.meaning}; of each layer the mean over its heads."
    if as_map and len({cell.step for cell in cells}) == values["columns"]:
        told += " Columns are means over several steps, and say the last of them."
    st.caption(told)
    sql_and_data("runs", "layers", as_text(statement, **values), pd.DataFrame([asdict(cell) for cell in cells]), figure)


def _heads(run: Run, label: TrainingMetric) -> None:
    with reading() as conn:
        steps = queries.head_steps(conn, run.run_id, label.name)
    if not steps:
        return
    asked = url.integer("step")
    nearest = steps[-1] if asked is None else min(steps, key=lambda step: abs(step - asked))
    if len(steps) > 1:
        st.select_slider(
            "Heads at step", steps, format_func=lambda step: f"{step:,}", **url.bind("step", nearest, steps)
        )
    with reading() as conn:
        found = queries.heads(conn, [run.run_id], label.name, nearest)
    statistic = Statistic(label.name, label.label, ATTENTION_SCALE, label.words, logarithmic=False, tick_format=".2f")
    cells = [Cell(run.run_id, each.layer, each.head, each.value) for each in found]
    figure = head_map([HeadMap("", cells)], statistic)
    st.plotly_chart(
        figure,
        key="head_map",
        config=CHART_CONFIG,
        alt=f"{label.label} of run {run.run_id} by layer and head at step {nearest}.",
    )
    st.caption(f"{label.label} of every head of run {run.run_id} at step {nearest:,}.")
    values = {"runs": [run.run_id], "metric": label.name, "step": nearest}
    data = pd.DataFrame([asdict(each) | {"step": nearest} for each in found])
    sql_and_data("runs", "heads", as_text(queries.HEADS, **values), data, figure)
