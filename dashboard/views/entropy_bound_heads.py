"""The parts of the entropy-bound page that compare heads: maps, a table with filters, and one head by sequence."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, head_map
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, count
from dashboard.head_choice import chosen_head, figure_of_heads, head_pickers, write_head
from dashboard.job_names import titles
from dashboard.queries import entropy_bound as queries
from dashboard.queries.entropy_bound import HeadBound
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.entropy_bound_metrics import CORNERS, KIND, METRICS, Plane
from services.contracts.probes.entropy_bound import TABLE

SEQUENCES = 100
_BY_SEQUENCE = {  # columns of the table by sequence, with headings short enough for all to be seen
    "input_norm": "‖X Xᵀ‖",
    "sigma_product": "σ at most",
    "sigma_mean": "σ",
    "sigma_max": "largest σ",
    "entropy_mean": "entropy",
    "entropy_min": "least",
    "log10_bound": "lg bound",
    "log10_product_bound": "lg of that",
    "gap_mean": "gap",
    "gap_min": "least gap",
    "tightness": "tightness",
    "top_1": "top 1",
    "top_8": "top 8",
    "top_5_percent": "top 5 %",
    "stable_rank": "st. rank",
    "effective_rank": "eff. rank",
}
_COMMENTS = {column.name: column.comment for column in TABLE.columns}
_EVERY = "any"
_SIDES = ["at least", "at most"]
_MOST = 1e9


def by_head(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], metric_name: str) -> tuple[int, int]:
    """A map per job; returns the chosen (layer, head)."""
    metric, ids, names = METRICS[metric_name], [job.job_id for job in jobs], titles(jobs)
    maps = [
        HeadMap(names[job], [Cell(r.job_id, r.layer, r.head, metric.drawn(r)) for r in rows if r.job_id == job])
        for job in ids
    ]
    chosen = chosen_head([cell for each in maps for cell in each.cells])
    figure = head_map(maps, metric.statistic(), selected=chosen)
    figure_of_heads(
        figure, "head_map", f"Heat map of {metric.label} by layer and head; the same numbers are in the CSV below."
    )
    st.caption(
        f"**{metric.label}**: {metric.meaning}. All jobs share one colour scale. Click a cell to see that head below."
    )
    sql_and_data(KIND, "heads", as_text(queries.HEADS, jobs=ids), pd.DataFrame([asdict(r) for r in rows]), figure)
    return chosen


def head_table(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], metric_name: str, plane: Plane) -> None:
    """All heads that the filter keeps, those with the largest value of the shown metric first; a row can be chosen."""
    st.markdown("**Heads**")
    kept = _filtered(rows, plane)
    kept.sort(key=lambda row: (-_value(row, metric_name), row.job_id, row.layer, row.head))
    st.caption(f"{count(len(kept))} of {count(len(rows))} heads. Click a column to sort, a row to see that head below.")
    if not kept:
        return
    frame = pd.DataFrame([{"pattern": plane.in_words(row), **asdict(row)} for row in kept])

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
        placeholder=NOTHING,
        column_order=[*(["job_id"] if len(jobs) > 1 else []), "layer", "head", "pattern", *METRICS],
        column_config={
            "job_id": st.column_config.NumberColumn("Job", format="%d", width=60),
            "layer": st.column_config.NumberColumn("Layer", width=55),
            "head": st.column_config.NumberColumn("Head", width=55),
            "pattern": st.column_config.TextColumn("Pattern", width=155),
        }
        | {
            name: st.column_config.NumberColumn(
                ("lg " if metric.is_log10 else "") + _heading(metric.label),
                format="%.3g" if metric.logarithmic else "%.3f",
                help=("log10 of the " if metric.is_log10 else "")
                + metric.meaning
                + (", in nats" if metric.label.endswith("(nats)") else ""),
            )
            for name, metric in METRICS.items()
        },
    )
    sql_and_data(KIND, "head-table", as_text(queries.HEADS, jobs=[job.job_id for job in jobs]), frame)


def _filtered(rows: Sequence[HeadBound], plane: Plane) -> list[HeadBound]:
    """Rows of the kind of pattern, value and layers chosen above the table; everything until something is chosen."""
    kinds, first, second, third, far = st.columns([2, 2, 1, 1, 2])
    patterns, names = [_EVERY, *CORNERS.values()], [_EVERY, *METRICS]
    with kinds:
        st.selectbox("Pattern", patterns, **url.bind("pattern", st.query_params.get("pattern"), patterns))
    with first:
        st.selectbox(
            "Show heads with",
            names,
            format_func=lambda name: "any values" if name == _EVERY else METRICS[name].label,
            **url.bind("where", st.query_params.get("where"), names),
        )
    name, pattern = st.session_state["where_choice"], st.session_state["pattern_choice"]
    off = name == _EVERY
    with second:
        st.selectbox("of", _SIDES, disabled=off, **url.bind("side", st.query_params.get("side"), _SIDES))
    limit = url.number("limit", 0.0, -_MOST, _MOST)
    with third:
        st.number_input("Value", disabled=off, step=0.05, **url.bind_number("limit", limit))
    layers = sorted({row.layer for row in rows})
    with far:
        st.multiselect("in layers", layers, placeholder="all", **url.bind("layers", url.integers("layers"), layers))
    chosen = st.session_state["layers_choice"]
    kept = [
        row
        for row in rows
        if (not chosen or row.layer in chosen) and (pattern == _EVERY or plane.in_words(row) == pattern)
    ]
    if off:
        return kept
    at_least = st.session_state["side_choice"] == _SIDES[0]
    known = [(row, getattr(row, name)) for row in kept if getattr(row, name) is not None]
    return [row for row, value in known if (value >= limit if at_least else value <= limit)]


def _heading(label: str) -> str:
    """Short, so that all columns are in view."""
    return label.removesuffix(" (nats)").replace("effective", "eff.")


def _value(row: HeadBound, metric_name: str) -> float:
    value = getattr(row, metric_name)
    return float("-inf") if value is None else value


def one_head(jobs: Sequence[FinishedJob], chosen: tuple[int, int]) -> None:
    """The chosen head in every sequence of the jobs, as it is stored."""
    layer, head = chosen
    st.subheader(f"Layer {layer}, head {head}")
    head_pickers(jobs, layer, head)
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = queries.sequences(conn, ids, layer, head, limit=SEQUENCES)
    if not found:
        st.info("None of the chosen jobs has a head there.", icon=":material/search_off:")
        return
    frame = pd.DataFrame(found)
    defined = [name for name in _BY_SEQUENCE if not frame[name].isna().all()]
    st.dataframe(
        frame,
        hide_index=True,
        key="head_sequences",
        height=rows_height(len(frame)),
        placeholder=NOTHING,
        column_order=[*(["job_id"] if len(jobs) > 1 else []), "sequence", *defined],
        column_config={
            "job_id": st.column_config.NumberColumn("Job", format="%d", width=45),
            "sequence": st.column_config.NumberColumn("Seq.", format="%d", width=45, help="sequence, 0-based"),
        }
        | {
            name: st.column_config.NumberColumn(_BY_SEQUENCE[name], width=70, format="%.3g", help=_COMMENTS[name])
            for name in defined
        },
    )
    st.caption(
        f"One row per sequence, the first {SEQUENCES} at most. The CSV has every column of `entropy_bound`; those with "
        "no defined value here are left out above, and so is what is the same for every sequence."
    )
    sql_and_data(
        KIND, "sequences", as_text(queries.SEQUENCES, jobs=ids, layer=layer, head=head, limit=SEQUENCES), frame
    )
