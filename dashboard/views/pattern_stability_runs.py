"""The parts of the pattern-stability page about runs: the claim, distances by step, and both by layer."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd
import streamlit as st

from dashboard.charts.run_distances import LayerStability, by_layer, by_step
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count
from dashboard.stability import Checkpoint, Stability, stability, words
from dashboard.tables import rows_height
from dashboard.views.pattern_stability_shown import KIND, Shown


def runs_and_ends(shown: Shown) -> None:
    """Whether the article's claim holds of these checkpoints, and the curves that say so."""
    found = stability(shown.checkpoints, shown.distances)
    _key_figures(found)
    st.markdown(statement(found))
    told = runs_against_steps(found)
    if told:
        st.markdown(told)
    if not found.to_end:
        return
    figure = by_step(found, shown.label)
    st.plotly_chart(
        figure,
        key="by_step",
        config=CHART_CONFIG,
        alt=f"{shown.label} of each checkpoint from the end of its run by step, with the level between ends of runs.",
    )
    st.caption(
        "Lines: distance of a run's checkpoints from its last one, which is at 0. Orange: distances of the last "
        "checkpoints of every two runs, mean and range."
    )
    st.dataframe(
        _step_table(found),
        hide_index=True,
        key="at_steps",
        height=rows_height(len(found.steps), at_most=14),
        column_config={
            "Step": st.column_config.NumberColumn(format="localized", width=80, pinned=True),
            "Runs": st.column_config.NumberColumn(help="that have a checkpoint at the step, before their last"),
            "Between runs": st.column_config.TextColumn(help="mean distance of every two runs at this step"),
            "Nearest ends": st.column_config.TextColumn(help="the last checkpoints of two runs that are nearest"),
        },
    )
    table = _table(found)
    st.dataframe(
        table,
        hide_index=True,
        key="to_end",
        height=rows_height(len(table)),
        column_config={
            "Step": st.column_config.NumberColumn(format="localized"),
            "Model": st.column_config.TextColumn(width="large"),
        },
    )
    sql_and_data(KIND, "runs", shown.sql, table, figure)


def statement(found: Stability) -> str:
    """The claim of Figure 4 for these checkpoints, in numbers."""
    if not found.told:
        return (
            "**Whether the article's claim holds cannot be told** from these checkpoints: it needs two runs, and in "
            "one of them a checkpoint before its last."
        )
    nearest = min(found.between_ends)
    if found.holds_from is None:
        last = max(found.to_end, key=lambda each: each.checkpoint.step)
        return (
            "**The article's claim does not hold** at any step of these checkpoints: the nearest ends of two runs are "
            f"{words(nearest)} apart, and at step {count(last.checkpoint.step)} a run is still {words(last.distance)} "
            "from its own end."
        )
    farthest = max(each.distance for each in found.to_end if each.checkpoint.step >= found.holds_from)
    return (
        f"**The article's claim holds from step {count(found.holds_from)} on**: every checkpoint from there is nearer "
        f"to the end of its run ({words(farthest)} at most) than the ends of any two runs are to each other "
        f"({words(nearest)} at least)."
    )


def runs_against_steps(found: Stability) -> str:
    """Whether runs differ more than the steps of one run do, in numbers; empty where nothing can be compared."""
    if found.within_runs is None or found.between_runs is None:
        return ""
    more = found.between_runs > found.within_runs
    by = f", by a factor of {found.between_runs / found.within_runs:.2f}" if found.within_runs else ""
    return (
        f"**Runs differ {'more' if more else 'no more'} than steps**: two checkpoints of two runs are "
        f"{words(found.between_runs)} apart, two of one run {words(found.within_runs)}, means over all pairs{by}."
    )


def _step_table(found: Stability) -> pd.DataFrame:
    """The distances to the own end step by step, beside what runs differ by."""
    nearest = min(found.between_ends, default=None)
    return pd.DataFrame(
        [
            {
                "Step": each.step,
                "Runs": each.runs,
                "From its own end, mean": words(each.mean_to_end),
                "From its own end, farthest": words(each.farthest_to_end),
                "Between runs": words(each.between_runs),
                "Nearest ends": words(nearest),
                "All nearer than ends of runs": NOTHING
                if nearest is None
                else ("yes" if each.farthest_to_end < nearest else "no"),
            }
            for each in found.steps
        ]
    )


def _key_figures(found: Stability) -> None:
    ratio = None
    if found.within_runs and found.between_runs is not None:
        ratio = found.between_runs / found.within_runs
    figures = [
        ("Holds from step", count(found.holds_from), "the first step from which on every run is nearer to its own end"),
        ("Within runs", words(found.within_runs), "mean distance of every two checkpoints of one run"),
        ("Between runs", words(found.between_runs), "mean distance of every two checkpoints of two runs"),
        ("Between over within", NOTHING if ratio is None else f"{ratio:.2f}", "ratio of the two means"),
        (
            "Between ends",
            words(fmean(found.between_ends) if found.between_ends else None),
            "mean distance of the last checkpoints of every two runs",
        ),
    ]
    for column, (name, value, told) in zip(st.columns(len(figures)), figures, strict=True):
        column.metric(name, value, help=told)


def _table(found: Stability) -> pd.DataFrame:
    nearest = min(found.between_ends, default=None)

    return pd.DataFrame(
        [
            {
                "Number": each.checkpoint.number,
                "Run": each.checkpoint.run,
                "Step": each.checkpoint.step,
                "From its run's end": each.distance,
                "Nearer than ends of runs": NOTHING
                if nearest is None
                else ("yes" if each.distance < nearest else "no"),
                "Model": each.checkpoint.model,
            }
            for each in found.to_end
        ]
    )


def layers_of_runs(shown: Shown) -> None:
    """The same layer by layer: curves, and from which step the claim holds in each."""
    found = [
        LayerStability(layer, stability(shown.checkpoints, distances)) for layer, distances in shown.by_layer.items()
    ]
    if not found or not found[0].found.to_end:
        return
    st.divider()
    st.subheader("By layer")
    figure = by_layer(found, shown.label)
    st.plotly_chart(
        figure,
        key="by_layer",
        config=CHART_CONFIG,
        alt=f"{shown.label} from the run's end by layer, a line for each step, and the range between ends of runs.",
    )
    st.caption(
        "Lines: distance from the run's end at a step, mean over the runs that have it. Orange: between the ends of "
        "runs. Where a line lies below the band, the claim holds for the layer at that step."
    )
    table = _layer_table(found, shown.checkpoints)
    st.dataframe(table, hide_index=True, key="layer_table", height=rows_height(len(table)))
    sql_and_data(KIND, "layers", shown.sql, table, figure)


def _layer_table(layers: Sequence[LayerStability], checkpoints: Sequence[Checkpoint]) -> pd.DataFrame:
    def line(each: LayerStability) -> Mapping[str, object]:
        found = each.found
        nearest = min(found.between_ends, default=None)
        nearer = sum(one.distance < nearest for one in found.to_end) if nearest is not None else None
        return {
            "Layer": each.layer,
            "Holds from step": count(found.holds_from),
            "Nearer checkpoints": NOTHING if nearer is None else f"{nearer} of {len(found.to_end)}",
            "Within runs": words(found.within_runs),
            "Between runs": words(found.between_runs),
            "Nearest ends": words(nearest),
        }

    return pd.DataFrame([line(each) for each in layers])
