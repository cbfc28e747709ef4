"""Which runs the page of NATQ compares: of a sweep the best setting of each variant, else those in the address."""

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.pages import RUNS, SWEEPS
from dashboard.queries import runs as run_queries
from dashboard.queries import sweeps as sweep_queries
from dashboard.queries.runs import Run, RunLine
from dashboard.queries.sweeps import SweepLine
from dashboard.run_names import MOST_RUNS, picker_names
from dashboard.sweep_words import result_of
from dashboard.views.sweep_detail import best_runs
from db.sweep_results import SweepResult
from services.contracts.training.variants import CONTROL

NATQ = "natq"
_NONE = "none: runs of my choice"
FIRST_COMMAND = "keyhole submit suite --preset laboratory/figure-6-small --wait"


@dataclass(frozen=True)
class Chosen:
    """``result`` is that of the sweep, None where runs were chosen."""

    runs: list[Run]
    result: SweepResult | None


def chosen_runs() -> Chosen | None:
    """The pickers and what they select; None after telling what to do."""
    with reading() as conn:
        sweeps = [line for line in sweep_queries.sweeps(conn) if len(line.variants) > 1]
        recent = run_queries.recent(conn)
    trained = [line for line in recent if line.variant is not None]
    if not sweeps and not any(NATQ in (line.variant or "") for line in trained):
        st.info(
            "There is no run with NATQ yet. This command tunes it and the control, three seeds of each setting, and "
            "profiles the ends; a quarter of an hour on two CPU cores:",
            icon=":material/rocket_launch:",
        )
        st.code(FIRST_COMMAND, language="bash")
        return None
    sweep = _sweep(sweeps, named="runs" in st.query_params)
    return _of_sweep(sweep) if sweep is not None else _of_runs(trained)


def _sweep(sweeps: Sequence[SweepLine], *, named: bool) -> int | None:
    """The sweep in the address; where neither sweep nor runs are named, the newest with NATQ."""
    if not sweeps:
        return None
    names = {line.sweep_id: line.name for line in sweeps}
    options = [None, *names]
    newest = next((line.sweep_id for line in sweeps if any(NATQ in each for each in line.variants)), None)
    asked = url.integer("sweep")
    if asked is None and not named and st.query_params.get("sweep") != "none":
        asked = newest
    bound = url.bind("sweep", asked, options)

    def changed() -> None:
        picked = st.session_state[bound["key"]]
        url.write("sweep", "none" if picked is None else picked)
        url.write("runs", None)

    return st.selectbox(
        "Sweep",
        options,
        format_func=lambda number: _NONE if number is None else f"{number} · {names[number]}",
        placeholder=_NONE,
        key=bound["key"],
        on_change=changed,
    )


def _of_sweep(number: int) -> Chosen | None:
    with reading() as conn:
        members = sweep_queries.members(conn, number)
        result = result_of(members)
        runs = run_queries.runs(conn, best_runs(members, result))
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.caption("The best setting of each variant, by final validation loss, with all its seeds.")
        st.page_link(SWEEPS, label=f"Sweep {number}", icon=":material/grid_on:", query_params={"sweep": str(number)})
        if runs:
            joined = ",".join(str(run.run_id) for run in runs)
            st.page_link(RUNS, label="These runs", icon=":material/show_chart:", query_params={"runs": joined})
    if not runs:
        st.info("No member of this sweep has come to its last step yet.", icon=":material/hourglass_empty:")
        return None
    return Chosen(runs, result)


def _of_runs(trained: Sequence[RunLine]) -> Chosen | None:
    asked = url.integers("runs")[:MOST_RUNS]
    with reading() as conn:
        lines = {line.run_id: line for line in [*trained, *run_queries.lines(conn, asked)]}
    if not asked and "runs" not in st.query_params:
        asked = comparable(trained)
    options = sorted(lines, reverse=True)
    numbers = st.multiselect(
        "Runs",
        options,
        format_func=picker_names(list(lines.values())).__getitem__,
        max_selections=MOST_RUNS,
        placeholder="choose runs of several variants",
        **url.bind("runs", asked, options),
    )
    if not numbers:
        st.info("Choose runs above: of the control and of NATQ, several seeds of each.", icon=":material/arrow_upward:")
        return None
    with reading() as conn:
        return Chosen(run_queries.runs(conn, numbers), None)


def comparable(trained: Sequence[RunLine]) -> list[int]:
    """The newest runs of NATQ and of the control that are alike in model, data, length and optimizer."""

    def kind(line: RunLine) -> tuple[object, ...]:
        return line.model, line.dataset, line.steps, line.optimizer, line.learning_rate, line.weight_decay

    newest = next((line for line in trained if NATQ in (line.variant or "")), None)
    if newest is None:
        return []
    variants = (newest.variant, CONTROL)
    return [line.run_id for line in trained if kind(line) == kind(newest) and line.variant in variants][:MOST_RUNS]
