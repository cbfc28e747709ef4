"""What NATQ's solver logged: residuals, iterations and fallbacks, by step and over whole runs."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.queries import training_metrics as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.queries.training_metrics import OverSteps
from dashboard.tables import rows_height
from dashboard.training_metrics import SOLVER, named
from dashboard.views.runs_curves import Curves, draw

LARGEST = "natq_residual_max"


def solver(runs: Sequence[Run]) -> None:
    """Nothing where no run has a solver."""
    with reading() as conn:
        found = {metric.name: metric for metric in queries.metrics(conn, [run.run_id for run in runs])}
        names = [name for name in SOLVER if name in found]
        rows = queries.over_steps(conn, [run.run_id for run in runs], names) if names else []
    if not rows:
        return
    st.divider()
    st.subheader("The solver of NATQ")
    name = st.pills(
        "Solver's number",
        names,
        required=True,
        format_func=lambda each: named(each).label,
        label_visibility="collapsed",
        **url.bind("solver", st.query_params.get("solver"), names),
    )
    metric = found[name or names[0]]
    start = url.integer("start") or 0
    draw(runs, metric, Curves([metric], True, False, False, start, None, None), kind="natq_training")
    shown = _table(runs, rows)
    st.dataframe(
        shown,
        hide_index=True,
        key="solver_table",
        height=rows_height(len(shown)),
        column_config={
            name: st.column_config.TextColumn(name.capitalize(), alignment="right")
            for name in shown.columns
            if name not in ("Run", "Variant", "Seed")
        },
    )
    st.caption(
        "Over all layers and steps of each run: means, and the most at any layer and step. The residual bounds a "
        "row's relative error: ‖r‖ / (λ‖x‖) of its system (F + λI)x = g. Rows that are not done in the iterations "
        "allowed are solved exactly if the variant's `fallback` is on, and counted either way."
    )
    statement = as_text(queries.OVER_STEPS, runs=[run.run_id for run in runs], metrics=names)
    sql_and_data("natq_training", "solver", statement, pd.DataFrame([asdict(row) for row in rows]))


def _table(runs: Sequence[Run], rows: Sequence[OverSteps]) -> pd.DataFrame:
    """A line for each run with a solver; of the largest residuals only the largest says something."""
    lines: dict[int, dict[str, object]] = {}
    for run in runs:
        of_run = {row.metric: row for row in rows if row.run_id == run.run_id}
        if of_run:
            line: dict[str, object] = {"Run": run.run_id, "Variant": run.variant, "Seed": run.seed}
            for metric in (named(name) for name in SOLVER if name in of_run):
                row = of_run[metric.name]
                if metric.name == LARGEST:
                    line[metric.label] = metric.words(row.largest)
                else:
                    line[metric.label] = f"{metric.words(row.mean)} (most {metric.words(row.largest)})"
            lines[run.run_id] = line
    return pd.DataFrame(list(lines.values()))
