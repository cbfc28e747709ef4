"""Figure 6: validation loss by step, means over seeds with their spread, and whether the ends differ."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, count, markdown_text, signed_decimals
from dashboard.live import RUNS_RENEW_S
from dashboard.problems import show
from dashboard.queries import runs as run_queries
from dashboard.queries import training_metrics as queries
from dashboard.queries.runs import Run
from dashboard.queries.text import as_text
from dashboard.run_comparison import compared, reference_of
from dashboard.run_names import Group, groups
from dashboard.sweep_words import difference_words, noise_words, turned, with_spread
from dashboard.tables import rows_height
from dashboard.training_metrics import VALIDATION_LOSS
from dashboard.views.natq_training_chosen import Chosen
from dashboard.views.run_list import in_motion
from dashboard.views.runs_curves import Curves, draw
from db.sweep_results import Difference, Noise
from services.contracts.errors import KeyholeError

CURVE, DIFFERENCE = "losses", "difference from the reference"


def losses(chosen: Chosen, alike: Sequence[Group]) -> None:
    st.subheader("Figure 6: validation loss")
    left, right, _ = st.columns([1, 1, 2], vertical_alignment="bottom")
    largest = max(1, *(run.steps_done for run in chosen.runs))
    with left:
        options = [CURVE, DIFFERENCE] if len(alike) > 1 else [CURVE]
        st.selectbox("Shown", options, **url.bind("show", st.query_params.get("show"), options))
    with right:
        start = int(url.number("start", largest // 10, 0, largest))  # the first fall hides all that follows
        st.number_input("From step", min_value=0, max_value=largest, **url.bind_number("start", start))
    difference = st.session_state["show_choice"] == DIFFERENCE
    states = [run.state for run in chosen.runs]
    renew = RUNS_RENEW_S if any(map(in_motion, chosen.runs)) else None
    st.fragment(_live, run_every=renew)([run.run_id for run in chosen.runs], states, chosen, start, difference)


def _live(numbers: list[int], states: list[str], chosen: Chosen, start: int, difference: bool) -> None:
    try:
        with reading() as conn:
            runs = run_queries.runs(conn, numbers)
            metrics = {metric.name: metric for metric in queries.metrics(conn, numbers)}
    except KeyholeError as error:
        show(error)
        return
    if [run.state for run in runs] != states:
        st.rerun()
    alike = groups(runs)
    if VALIDATION_LOSS not in metrics:
        st.info("No validation loss is stored yet.", icon=":material/hourglass_empty:")
        return
    reference = reference_of(alike).numbers[0] if difference else None
    metric = metrics[VALIDATION_LOSS]
    draw(runs, metric, Curves([metric], True, False, False, start, None, reference), kind="natq_training")
    _ends(chosen, runs, alike)


def final_losses(runs: Sequence[Run]) -> dict[int, float | None]:
    """Validation loss at the last step, of the runs that have come there."""
    return {
        run.run_id: run.last_validation_loss_nats if run.last_validation_step == run.steps else None for run in runs
    }


def _ends(chosen: Chosen, runs: Sequence[Run], alike: Sequence[Group]) -> None:
    """Final losses by group, and the verdicts; of a sweep with the noise of all its settings."""
    final = final_losses(runs)
    noise, differences = compared(alike, final)
    if chosen.result is not None and chosen.result.best:
        noise, differences = _of_sweep(chosen, alike)
    shown = pd.DataFrame([_line(group, final, differences) for group in alike])
    st.dataframe(
        shown,
        hide_index=True,
        key="final_losses",
        height=rows_height(len(shown), at_most=12),
        column_config={
            "Runs": st.column_config.TextColumn(width=300, pinned=True),
            "Final validation loss (nats)": st.column_config.TextColumn(
                alignment="right", help="mean ± standard deviation over seeds, at the last step"
            ),
            "Seeds": st.column_config.TextColumn(alignment="right", help="that came to their last step, of all"),
            "Difference (nats)": st.column_config.TextColumn(alignment="right", help="from the reference"),
            "Counts from (nats)": st.column_config.TextColumn(alignment="right"),
        },
    )
    for each in differences.values():
        st.markdown(f"- {_plain(each)}")
    if chosen.result is not None and chosen.result.lacking is not None:
        st.markdown(markdown_text(chosen.result.lacking))
    st.caption(
        f"{noise_words(noise)} The article's control and NATQ have 124M parameters and 5,000 steps of 512 sequences, "
        "tuned for learning rate and weight decay each; its seed noise there would be about 0.0013 nats."
    )
    numbers = [run.run_id for run in runs]
    sql_and_data("natq_training", "ends", as_text(run_queries.RUNS, runs=numbers), shown)


def _plain(each: Difference) -> str:
    words = difference_words(each)
    return words.replace(each.second, markdown_text(each.second), 1).replace(each.first, markdown_text(each.first), 1)


def _of_sweep(chosen: Chosen, alike: Sequence[Group]) -> tuple[Noise | None, dict[str, Difference]]:
    assert chosen.result is not None
    variant = reference_of(alike).variant
    labels = {group.variant: group.label for group in alike}
    found = {}
    for each in chosen.result.differences:
        if variant in (each.first, each.second):
            told = turned(each, variant)
            found[labels.get(told.second, told.second)] = told
    return chosen.result.noise, found


def _line(group: Group, final: dict[int, float | None], differences: dict[str, Difference]) -> dict[str, str]:
    values = [value for run in group.runs if (value := final[run.run_id]) is not None]
    difference = differences.get(group.label)
    return {
        "Runs": group.label,
        "Final validation loss (nats)": with_spread(values),
        "Seeds": f"{count(len(values))} of {count(len(group.runs))}",
        "Difference (nats)": NOTHING if difference is None else signed_decimals(difference.difference_nats, 4),
        "Counts from (nats)": NOTHING
        if difference is None or difference.least_nats is None
        else f"{difference.least_nats:.4f}",
        "Verdict": "reference" if difference is None else difference.verdict,
    }
