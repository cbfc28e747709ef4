"""Which head a result page shows: a click in a map or the pickers, kept in the address as ``layer`` and ``head``."""

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob


def chosen_head(cells: Sequence[Cell]) -> tuple[int, int]:
    """(layer, head) of the address if a cell is there, else of the cell with the largest value."""
    layer, head = url.integer("layer"), url.integer("head")
    if layer is not None and head is not None and any((c.layer, c.head) == (layer, head) for c in cells):
        return layer, head
    known = [cell for cell in cells if cell.value is not None]
    top = max(known, key=lambda cell: cell.value or 0.0) if known else Cell(0, 0, 0, None)
    return top.layer, top.head


def figure_of_heads(figure: go.Figure, key: str, alt: str) -> None:
    """Show a figure whose points are heads; a click on one chooses it."""
    st.plotly_chart(
        figure, key=key, config=CHART_CONFIG, on_select=_when_clicked(key), selection_mode="points", alt=alt
    )


def map_of_heads(figure: go.Figure, label: str) -> None:
    """Show the page's map of all heads."""
    figure_of_heads(
        figure, "head_map", f"Heat map of {label} by layer and head; the same numbers are in the CSV below."
    )


def _when_clicked(key: str) -> Callable[[], None]:
    """What the map with that key does at a selection: the head of the first point becomes the chosen one."""

    def write() -> None:
        points = st.session_state[key]["selection"]["points"]
        if points and points[0].get("customdata"):
            _, layer, head = points[0]["customdata"]
            write_head(layer, head)

    return write


def write_head(layer: int, head: int) -> None:
    url.write("layer", int(layer))
    url.write("head", int(head))


def head_pickers(jobs: Sequence[FinishedJob], layer: int, head: int) -> None:
    """Two pickers over all layers and heads of these jobs."""
    with reading() as conn:
        layers, heads = summary_queries.extent(conn, [job.job_id for job in jobs])
    left, right, _ = st.columns([1, 1, 4])
    with left:
        st.selectbox("Layer", layers, **url.bind("layer", layer, layers))
    with right:
        st.selectbox("Head", heads, **url.bind("head", head, heads))
