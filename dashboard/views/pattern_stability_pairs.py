"""The parts of the pattern-stability page about pairs: all checkpoints among each other, and the heads of two."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.distance_matrix import distance_matrix
from dashboard.charts.head_map import Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ATTENTION_SCALE
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import markdown_text, percent
from dashboard.queries import pattern_stability as queries
from dashboard.queries.text import as_text
from dashboard.stability import Checkpoint, last_of_runs, words
from dashboard.tables import rows_height
from dashboard.views.pattern_stability_shown import KIND, Shown


def matrix(shown: Shown) -> tuple[int, int]:
    """The matrix of all pairs; returns the chosen pair: from the address, else the ends of two runs."""
    st.subheader("Checkpoints among each other")
    pair = _chosen_pair(shown.checkpoints)
    figure = distance_matrix(shown.checkpoints, shown.distances, shown.label, pair)
    left, right = st.columns([3, 2], vertical_alignment="center")
    with left:
        st.plotly_chart(
            figure,
            key="matrix",
            config=CHART_CONFIG,
            on_select=_pair_clicked,
            selection_mode="points",
            alt=f"Matrix of the {shown.label} between every two checkpoints; the same numbers are in the CSV.",
        )
    with right:
        st.caption(
            "Ordered by run and step; lines part the runs. **What to look at:** whether the squares along the "
            "diagonal, two checkpoints of one run, are lighter than what is beside them, checkpoints of two runs, and "
            "from which step on. Click a cell to see its heads below."
        )
    names = {each.number: each for each in shown.checkpoints}
    data = pd.DataFrame(
        [
            {
                "first": first,
                "first_run": names[first].run,
                "first_step": names[first].step,
                "second": second,
                "second_run": names[second].run,
                "second_step": names[second].step,
                shown.measure: distance,
            }
            for (first, second), distance in sorted(shown.distances.items())
        ]
    )
    with right:
        sql_and_data(KIND, "checkpoints", shown.sql, data, figure)
    return pair


def _chosen_pair(checkpoints: Sequence[Checkpoint]) -> tuple[int, int]:
    numbers = {each.number for each in checkpoints}
    asked = sorted(number for number in url.integers("pair") if number in numbers)
    if len(asked) == 2:
        return asked[0], asked[1]
    ends = [each.number for each in last_of_runs(checkpoints).values()]
    first, second = sorted(ends[:2] if len(ends) > 1 else [each.number for each in checkpoints[-2:]])
    return first, second


def _pair_clicked() -> None:
    points = st.session_state["matrix"]["selection"]["points"]
    if points and points[0].get("customdata"):
        first, second = sorted(int(number) for number in points[0]["customdata"])
        if first != second:
            url.write("pair", [first, second])


def heads_of_pair(shown: Shown, pair: tuple[int, int]) -> None:
    """Distances head by head, by index above by assignment, and which head is paired with which."""
    names = {each.number: f"{each.run}, step {each.step:,}" for each in shown.checkpoints}
    st.subheader("Heads of two checkpoints")
    first, second = _pickers(names, pair)
    if first == second:
        st.info("Choose two different checkpoints.", icon=":material/arrow_upward:")
        return
    first, second = sorted((first, second))
    with reading() as conn:
        heads = queries.head_distances(conn, shown.job.job_id, first, second, shown.measure)
    job_id = shown.job.job_id
    statistic = Statistic(shown.measure, shown.label, ATTENTION_SCALE, words, logarithmic=False, tick_format=".2f")
    maps = [
        HeadMap("heads paired by index", [Cell(job_id, each.layer, each.head, each.by_index) for each in heads]),
        HeadMap(
            "heads paired by assignment", [Cell(job_id, each.layer, each.head, each.by_assignment) for each in heads]
        ),
    ]
    figure = head_map(maps, statistic)
    st.plotly_chart(
        figure,
        key="head_map",
        config=CHART_CONFIG,
        alt=f"{shown.label} between two checkpoints by layer and head, by index and by assignment.",
    )
    moved = sum(each.paired_head != each.head for each in heads)
    st.caption(
        f"Heads of {markdown_text(names[first])} against those of {markdown_text(names[second])}. The assignment pairs "
        f"{percent(moved / len(heads) if heads else None)} of the heads with another index; it minimises the total "
        "Jensen–Shannon divergence of a layer, so that a single head, or another measure, may come out farther."
    )
    table = pd.DataFrame([asdict(each) for each in heads])
    if not table.empty:
        table = table.sort_values("by_index", ascending=False)
    st.dataframe(
        table,
        hide_index=True,
        key="heads",
        height=rows_height(len(table)),
        column_config={
            "layer": st.column_config.NumberColumn("Layer"),
            "head": st.column_config.NumberColumn("Head"),
            "by_index": st.column_config.NumberColumn("By index", format="%.4f"),
            "paired_head": st.column_config.NumberColumn("Paired head", help="of the second checkpoint"),
            "by_assignment": st.column_config.NumberColumn("By assignment", format="%.4f"),
        },
    )
    statement = queries.with_measure(queries.HEAD_DISTANCES, shown.measure)
    sql_and_data(KIND, "heads", as_text(statement, job=job_id, first=first, second=second), table, figure)


def _pickers(names: dict[int, str], pair: tuple[int, int]) -> tuple[int, int]:
    """Two pickers that do what a click in the matrix does; the address has both as ``pair``."""
    numbers = list(names)

    def changed() -> None:
        url.write("pair", [st.session_state["pair_first"], st.session_state["pair_second"]])

    for column, key, number in zip(st.columns([1, 1, 2]), ("pair_first", "pair_second"), pair, strict=False):
        st.session_state[key] = number
        with column:
            st.selectbox(
                "Checkpoint" if key == "pair_first" else "compared with",
                numbers,
                format_func=names.__getitem__,
                key=key,
                on_change=changed,
            )
    return st.session_state["pair_first"], st.session_state["pair_second"]
