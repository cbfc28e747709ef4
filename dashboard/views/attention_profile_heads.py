"""The parts of the attention-profile page that compare heads: maps by layer and head, and a table with filters."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, head_map
from dashboard.downloads import sql_and_data
from dashboard.formats import count
from dashboard.head_choice import chosen_head, figure_of_heads, write_head
from dashboard.job_names import titles
from dashboard.queries import attention_profile as queries
from dashboard.queries.attention_profile import HeadProfile
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.attention_profile_metrics import KIND, METRICS

SIDES = ["at least", "at most"]
EVERY = "every"  # no filter


def metrics_shown(rows: Sequence[HeadProfile]) -> list[str]:
    """All metrics, but that of learned sinks only where some head has one."""
    return [name for name in METRICS if name != "no_key_mass" or any(row.no_key_mass for row in rows)]


def by_head(jobs: Sequence[FinishedJob], rows: Sequence[HeadProfile], metric_name: str) -> tuple[int, int]:
    """A map per job, and of two jobs their difference; returns the chosen (layer, head)."""
    metric, ids, names = METRICS[metric_name], [job.job_id for job in jobs], titles(jobs)
    maps = [HeadMap(names[job], _cells([row for row in rows if row.job_id == job], metric_name)) for job in ids]
    chosen = chosen_head([cell for each in maps for cell in each.cells])
    figure = head_map(maps, metric.statistic(), selected=chosen)
    figure_of_heads(
        figure, "head_map", f"Heat map of {metric.label} by layer and head; the same numbers are in the CSV below."
    )
    st.caption(
        f"Mean over the head's {metric.rows}; all jobs share one colour scale. Click a cell to see that head below."
    )
    sql_and_data(KIND, "heads", as_text(queries.HEADS, jobs=ids), pd.DataFrame([asdict(row) for row in rows]), figure)
    if len(jobs) == 2:
        _difference(jobs, metric_name, maps, chosen)
    return chosen


def _difference(
    jobs: Sequence[FinishedJob], metric_name: str, maps: Sequence[HeadMap], chosen: tuple[int, int]
) -> None:
    """The second job minus the first, for the heads that both have."""
    metric, ids = METRICS[metric_name], [job.job_id for job in jobs]
    cells = differences(maps[0].cells, maps[1].cells)
    if not cells:
        st.caption("The two jobs have no head in common.")
        return
    figure = head_map([HeadMap(f"job {ids[1]} − job {ids[0]}", cells)], metric.difference(), selected=chosen)
    st.markdown(f"**Difference: job {ids[1]} minus job {ids[0]}**")
    figure_of_heads(
        figure,
        "difference_map",
        f"Heat map of the difference in {metric.label} of the two jobs; the numbers are in the CSV below.",
    )
    st.caption(
        f"Blue: larger in job {ids[1]}; orange: larger in job {ids[0]}. Heads that only one job has are left out."
    )
    sql_and_data(
        KIND,
        "difference",
        as_text(DIFFERENCE.format(metric=metric_name), first=ids[0], second=ids[1]),
        pd.DataFrame([{"layer": c.layer, "head": c.head, "difference": c.value} for c in cells]),
        figure,
    )


DIFFERENCE = """
SELECT layer, head, two.{metric} - one.{metric} AS difference
FROM analysis.attention_profile_heads AS one JOIN analysis.attention_profile_heads AS two USING (layer, head)
WHERE one.job_id = %(first)s AND two.job_id = %(second)s
ORDER BY layer, head"""


def differences(first: Sequence[Cell], second: Sequence[Cell]) -> list[Cell]:
    """Cells of the heads in both, with the second's value minus the first's."""
    before = {(cell.layer, cell.head): cell.value for cell in first}
    return [
        Cell(cell.job_id, cell.layer, cell.head, _minus(cell.value, before[cell.layer, cell.head]))
        for cell in second
        if (cell.layer, cell.head) in before
    ]


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def head_table(
    jobs: Sequence[FinishedJob], rows: Sequence[HeadProfile], metric_names: Sequence[str], metric_name: str
) -> None:
    """All heads with these metrics, those with the largest value of the shown one first; a row can be chosen."""
    st.markdown("**Heads**")
    kept = _filtered(rows, metric_names)
    kept.sort(key=lambda row: (-_value(row, metric_name), row.job_id, row.layer, row.head))
    st.caption(f"{count(len(kept))} of {count(len(rows))} heads. Click a column to sort, a row to see that head below.")
    if not kept:
        return
    frame = pd.DataFrame([asdict(row) for row in kept])
    if len(jobs) == 1:
        frame = frame.drop(columns="job_id")

    def choose() -> None:
        selected = st.session_state["head_table"]["selection"]["rows"]
        if selected:
            write_head(kept[selected[0]].layer, kept[selected[0]].head)

    st.dataframe(
        frame,
        hide_index=True,
        key="head_table",
        height=rows_height(len(frame), at_most=10),
        on_select=choose,
        selection_mode="single-row",
        column_order=[*frame.columns[: frame.columns.get_loc("head") + 1], *metric_names],
        column_config={
            "job_id": st.column_config.NumberColumn("Job", format="%d", width=60),
            "layer": st.column_config.NumberColumn("Layer", width=60),
            "head": st.column_config.NumberColumn("Head", width=60),
        }
        | {
            name: st.column_config.NumberColumn(metric.label, format="%.3f", help=metric.meaning)
            for name, metric in METRICS.items()
        },
    )
    sql_and_data(KIND, "head-table", as_text(queries.HEADS, jobs=[job.job_id for job in jobs]), frame)


def _filtered(rows: Sequence[HeadProfile], metric_names: Sequence[str]) -> list[HeadProfile]:
    """Rows that the filter above the table keeps; it is off until a metric is chosen."""
    left, middle, right, far = st.columns([2, 1, 1, 2])
    options = [EVERY, *metric_names]
    with left:
        st.selectbox(
            "Show heads with",
            options,
            format_func=lambda name: "any values" if name == EVERY else METRICS[name].label,
            **url.bind("where", st.query_params.get("where"), options),
        )
    name = st.session_state["where_choice"]
    with middle:
        st.selectbox("of", SIDES, disabled=name == EVERY, **url.bind("side", st.query_params.get("side"), SIDES))
    side = st.session_state["side_choice"]
    limit = url.number("limit", 0.0, 0.0, 20.0)
    with right:
        st.number_input(
            "Value",
            min_value=0.0,
            max_value=20.0,
            step=0.05,
            disabled=name == EVERY,
            **url.bind_number("limit", limit),
        )
    layers = sorted({row.layer for row in rows})
    with far:
        st.multiselect("in layers", layers, placeholder="all", **url.bind("layers", url.integers("layers"), layers))
    chosen = st.session_state["layers_choice"]
    kept = [row for row in rows if not chosen or row.layer in chosen]
    if name == EVERY:
        return kept
    known = [(row, getattr(row, name)) for row in kept if getattr(row, name) is not None]
    return [row for row, value in known if (value >= limit if side == SIDES[0] else value <= limit)]


def _value(row: HeadProfile, metric_name: str) -> float:
    value = getattr(row, metric_name)
    return float("-inf") if value is None else value


def _cells(rows: Sequence[HeadProfile], metric_name: str) -> list[Cell]:
    return [Cell(row.job_id, row.layer, row.head, getattr(row, metric_name)) for row in rows]
