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
from dashboard.tables import rows_height
from dashboard.training_metrics import SOLVER, named
from dashboard.views.runs_curves import Curves, draw


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
    solved = [run for run in runs if any(row.run_id == run.run_id for row in rows)]
    start = url.integer("start") or 0
    draw(solved, metric, Curves([metric], True, False, False, start, None, None), kind="natq_training")
    by_run: dict[int, dict[str, object]] = {
        run.run_id: {"Run": run.run_id, "Variant": run.variant, "Seed": run.seed} for run in solved
    }
    for row in rows:
        label = named(row.metric)
        by_run[row.run_id][f"{label.label}, mean"] = label.words(row.mean)
        by_run[row.run_id][f"{label.label}, most"] = label.words(row.largest)
    shown = pd.DataFrame(list(by_run.values()))
    st.dataframe(shown, hide_index=True, key="solver_table", height=rows_height(len(shown)))
    st.caption(
        "Over all layers and steps of each run. A row's residual is that of its system (F + λI)x = g; rows that are "
        "not done in the iterations allowed are solved exactly if the variant's `fallback` is on, and counted either "
        "way."
    )
    statement = as_text(queries.OVER_STEPS, runs=[run.run_id for run in runs], metrics=names)
    sql_and_data("natq_training", "solver", statement, pd.DataFrame([asdict(row) for row in rows]))
