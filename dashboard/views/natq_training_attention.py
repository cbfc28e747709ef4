"""Attention of variants over training: by step, and by layer at one step, means over seeds with their spread."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.curves import Curve, curves
from dashboard.charts.look import variant_places
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.queries import training_metrics as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.run_names import Group
from dashboard.training_metrics import ATTENTION, TrainingMetric, named
from dashboard.views.runs_curves import Curves, draw


def attention(runs: Sequence[Run], alike: Sequence[Group]) -> None:
    """Nothing but a sentence where the runs did not look at their attention."""
    st.subheader("Attention during training")
    numbers = [run.run_id for run in runs]
    with reading() as conn:
        found = {metric.name: metric for metric in queries.metrics(conn, numbers)}
    names = [name for name in ATTENTION if name in found]
    if not names:
        st.caption("These runs have no numbers of attention: they were asked for `validation.attention_sequences=0`.")
        return
    name = st.pills(
        "Number",
        names,
        required=True,
        format_func=lambda each: named(each).label,
        label_visibility="collapsed",
        **url.bind("metric", st.query_params.get("metric"), names),
    )
    metric = found[name or names[0]]
    start = url.integer("start") or 0
    draw(runs, metric, Curves([metric], True, False, False, start, None, None), kind="natq_training")
    if metric.of_layers:
        _by_layer(numbers, alike, named(metric.name))


def _by_layer(numbers: Sequence[int], alike: Sequence[Group], label: TrainingMetric) -> None:
    with reading() as conn:
        steps = queries.layer_steps(conn, numbers, label.name)
    if not steps:
        return
    asked = url.integer("step")
    step = steps[-1] if asked is None else min(steps, key=lambda each: abs(each - asked))
    if len(steps) > 1:
        st.select_slider("Layers at step", steps, format_func=lambda each: f"{each:,}", **url.bind("step", step, steps))
    values = queries.group_layers_values([group.numbers for group in alike], label.name, step)
    with reading() as conn:
        rows = queries.group_layers(conn, values)
    lines = []
    places = variant_places(group.variant for group in alike)
    for number, of_group in groupby(rows, key=lambda row: row.number):
        layers = list(of_group)
        spread = any(row.sd is not None for row in layers)
        lines.append(
            Curve(
                alike[number].label,
                [row.layer for row in layers],
                [row.mean for row in layers],
                places[number],
                low=[row.mean - (row.sd or 0.0) for row in layers] if spread else (),
                high=[row.mean + (row.sd or 0.0) for row in layers] if spread else (),
                hover=["" if row.sd is None else f" ± {row.sd:.2g}, {row.runs} runs" for row in layers],
            )
        )
    figure = curves(lines, x_title="layer", y_title=label.label, words=label.words, height=360, markers=True)
    figure.update_xaxes(dtick=1 if len({row.layer for row in rows}) <= 32 else None)
    st.plotly_chart(
        figure,
        key="group_layers",
        config=CHART_CONFIG,
        alt=f"{label.label} by layer at step {step}, a line for each group of runs; the numbers are in the CSV.",
    )
    st.caption(
        f"{label.label} by layer at step {step:,}: means over heads and seeds; bands: one standard deviation of seeds."
    )
    data = pd.DataFrame([{"group": alike[row.number].label} | asdict(row) for row in rows])
    sql_and_data("natq_training", "layers", as_text(queries.GROUP_LAYERS, **values), data, figure)
