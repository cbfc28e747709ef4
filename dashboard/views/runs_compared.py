"""Chosen runs: how far they are and what they came to, their curves, layers, matrices and settings.

The address carries what is shown: the runs, numbers, axes, reference, and what is chosen of single runs.
"""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, count, duration, markdown_text, moment, shortened
from dashboard.live import RUNS_RENEW_S
from dashboard.pages import ALERTS, CHECKPOINTS, JOBS, NATQ_TRAINING, RESULTS, RUNS
from dashboard.problems import show
from dashboard.queries import run_jobs
from dashboard.queries import runs as run_queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.run_names import MOST_RUNS, differences, picker_names, settings
from dashboard.tables import rows_height, table
from dashboard.views.run_list import COLUMNS, in_motion
from dashboard.views.runs_curves import Curves, asked_curves, draw_curves
from dashboard.views.runs_layers import layers_of_run, run_of_rows
from dashboard.views.runs_matrices import matrices
from services.contracts.errors import KeyholeError

_MOST_ERRORS = 3


def runs_compared(numbers: Sequence[int]) -> None:
    st.page_link(RUNS, label="All runs", icon=":material/arrow_back:", query_params={})
    with reading() as conn:
        runs = run_queries.runs(conn, list(numbers[:MOST_RUNS]))
        recent = run_queries.recent(conn)
    st.title("Runs" if not runs else f"Run {runs[0].run_id}" if len(runs) == 1 else f"{len(runs)} runs")
    found = {run.run_id for run in runs}
    missing = [number for number in numbers[:MOST_RUNS] if number not in found]
    if missing:
        told = ", ".join(map(str, missing))
        st.warning(f"There is no run {told}. It may have been deleted with its job.", icon=":material/search_off:")
    if len(numbers) > MOST_RUNS:
        st.warning(f"{MOST_RUNS} runs are shown together at most; {len(numbers) - MOST_RUNS} are left out.")
    _head(runs)
    lines = {line.run_id: line for line in [*runs, *recent]}
    options = sorted(lines, reverse=True)
    st.multiselect(
        "Runs shown",
        options,
        format_func=picker_names(list(lines.values())).__getitem__,
        max_selections=MOST_RUNS,
        placeholder="choose runs to compare",
        **url.bind("runs", [run.run_id for run in runs], options),
    )
    if not runs:
        return
    _links(runs)
    asked = asked_curves(runs)
    states = [run.state for run in runs]
    renew = RUNS_RENEW_S if any(map(in_motion, runs)) else None
    st.fragment(_live, run_every=renew)([run.run_id for run in runs], states, asked)
    if any(run.job_id is not None for run in runs):  # imported ones have no layers and no matrices
        st.divider()
        of = run_of_rows(runs)
        layers_of_run(of)
        matrices(runs, of)
        st.divider()
    _settings(runs)


def _head(runs: Sequence[Run]) -> None:
    if len(runs) != 1:
        return
    run = runs[0]
    st.markdown(f"**{markdown_text(run.name)}**")
    over = f" over {shortened(run.dataset, 60)}" if run.dataset else ""
    st.text(f"{run.variant or 'imported'} of {shortened(run.model, 90)}{over}")
    submitter = f" by {markdown_text(run.submitted_by)}" if run.submitted_by else ""
    st.caption(f"Submitted {moment(run.created_at)}{submitter}")


def _links(runs: Sequence[Run]) -> None:
    """The ways from these runs to everything that is about them."""
    numbers = [run.run_id for run in runs]
    joined = ",".join(map(str, numbers))
    with reading() as conn:
        stability = run_jobs.of_kind(conn, numbers, "pattern_stability")
        alerts = run_jobs.alerts(conn, numbers[0]) if len(runs) == 1 else 0
    with st.container(horizontal=True, gap="small"):
        if len(runs) == 1 and runs[0].job_id is not None:
            st.page_link(
                JOBS, label=f"Job {runs[0].job_id}", icon=":material/list:", query_params={"job": str(runs[0].job_id)}
            )
        st.page_link(CHECKPOINTS, label="Checkpoints", icon=":material/save:", query_params={"runs": joined})
        if stability:
            st.page_link(
                RESULTS["pattern_stability"],
                label="Stability",
                icon=":material/compare_arrows:",
                query_params={"jobs": str(stability[0])},
                help="distances between the attention patterns of their checkpoints",
            )
        if len(runs) == 1:
            label = f"Alerts ({alerts})" if alerts else "Alerts"
            st.page_link(ALERTS, label=label, icon=":material/notifications:", query_params={"run": joined})
        if len({run.variant for run in runs}) > 1:
            st.page_link(
                NATQ_TRAINING, label="Variants compared", icon=":material/science:", query_params={"runs": joined}
            )


def _live(numbers: list[int], states: list[str], asked: Curves | None) -> None:
    """The part that renews itself while a run is in motion."""
    try:
        with reading() as conn:
            runs = run_queries.runs(conn, numbers)
        if [run.state for run in runs] != states:
            st.rerun()  # other links, or nothing more to renew
        _numbers(runs)
        _errors(runs)
        if asked is not None:
            draw_curves(runs, asked)
    except KeyholeError as error:
        show(error)


def _numbers(runs: Sequence[Run]) -> None:
    if len(runs) == 1:
        _one(runs[0])
        return
    shown = pd.DataFrame(
        {
            "Run": [run.run_id for run in runs],
            "State": [[run.state] for run in runs],
            "Progress": [100 * run.steps_done / run.steps if run.steps else None for run in runs],
            "Variant": [run.variant or NOTHING for run in runs],
            "Seed": [run.seed for run in runs],
            **_differing(runs),
            "Validation": [run.last_validation_loss_nats for run in runs],
            "at step": [run.last_validation_step for run in runs],
            "Best": [run.best_validation_loss_nats for run in runs],
            "Bits/byte": [run.last_validation_bits_per_byte for run in runs],
            "Tokens/s": [None if run.tokens_per_s is None else round(run.tokens_per_s) for run in runs],
            "Left": [duration(_left_s(run)) if in_motion(run) else "" for run in runs],
        }
    )
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        key="runs_table",
        height=rows_height(len(shown), at_most=12),
        column_config=COLUMNS
        | {
            "at step": st.column_config.NumberColumn(format="localized", width=80),
            "Tokens/s": st.column_config.NumberColumn(format="localized", width=90, help="latest"),
            "Left": st.column_config.TextColumn(width=90, help="at the latest speed"),
        },
    )
    records = pd.DataFrame([asdict(run) for run in runs])
    sql_and_data("runs", "table", as_text(run_queries.RUNS, runs=[run.run_id for run in runs]), records)


def _differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    return {name: values for name, values in differences(runs).items() if name not in ("Name", "Variant", "seed")}


def _one(run: Run) -> None:
    if run.steps:
        progress = f"{run.state}: {count(run.steps_done)} of {count(run.steps)} steps"
        if in_motion(run) and run.tokens_per_s:
            progress += f" · {run.tokens_per_s:,.0f} tokens/s · about {duration(_left_s(run))} left"
        st.progress(min(1.0, run.steps_done / run.steps), text=progress)
    figures = [
        (
            "Validation loss",
            NOTHING if run.last_validation_loss_nats is None else f"{run.last_validation_loss_nats:.4f}",
            f"nats per token, at step {count(run.last_validation_step)}",
        ),
        (
            "Best validation loss",
            NOTHING if run.best_validation_loss_nats is None else f"{run.best_validation_loss_nats:.4f}",
            f"nats per token, at step {count(run.best_validation_step)}",
        ),
        (
            "Bits per byte",
            NOTHING if run.last_validation_bits_per_byte is None else f"{run.last_validation_bits_per_byte:.4f}",
            "the latest validation loss per byte of text; none of token files",
        ),
        ("Tokens per second", NOTHING if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f}", "the latest"),
        ("Duration", duration(run.duration_s), "since its job first ran, or ran again after a retry"),
    ]
    for column, (name, value, told) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(name, value, help=told)


def _left_s(run: Run) -> float | None:
    if not (run.steps and run.tokens_per_s and run.tokens_per_step):
        return None
    return (run.steps - run.steps_done) * run.tokens_per_step / run.tokens_per_s


def _errors(runs: Sequence[Run]) -> None:
    failed = [run for run in runs if run.error_message]
    for run in failed[:_MOST_ERRORS]:
        told = f"Run {run.run_id}: {shortened(run.error_message or '', 400)}"
        st.error(markdown_text(told), icon=":material/error:")
    if len(failed) > _MOST_ERRORS:
        st.caption(f"{len(failed) - _MOST_ERRORS} more of these runs failed; their jobs say why.")


def _settings(runs: Sequence[Run]) -> None:
    if len(runs) == 1:
        with st.expander("Settings", icon=":material/tune:"):
            table(list(settings(runs[0]).items()), key="settings")
        return
    st.subheader("Settings that differ")
    differing = differences(runs)
    if not differing:
        st.caption("None: these runs were asked for the same, under the same name.")
        return
    shown = pd.DataFrame({"Run": [run.run_id for run in runs]} | differing)
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        key="differing",
        height=rows_height(len(shown), at_most=12),
        column_config={"Run": st.column_config.NumberColumn(format="%d", width=60, pinned=True)},
    )
    sql_and_data("runs", "settings", as_text(run_queries.RUNS, runs=[run.run_id for run in runs]), shown)
