"""How spectral norms grow with width: a section of the page of a suite whose runs differ in width."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.curves import Curve, curves
from dashboard.charts.look import NEUTRAL
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import count
from dashboard.queries import width_growth as queries
from dashboard.queries.text import as_text
from dashboard.queries.width_growth import Exponent

QUANTITIES = {"update": "σ(ΔW) of the last update", "weight": "σ(W) of the weight"}


def width_growth(suite_id: int) -> None:
    """Nothing where the runs have one width."""
    with reading() as conn:
        found = queries.growth(conn, suite_id)
    if not found:
        return
    st.divider()
    st.subheader("Growth with width")
    settings = list(dict.fromkeys(_settings(each) for each in found))
    left, right = st.columns(2)
    with left:
        chosen = st.selectbox("Training", settings, **url.bind("of", st.query_params.get("of"), settings))
    with right:
        options = list(QUANTITIES)
        quantity = st.selectbox(
            "Norm",
            options,
            format_func=QUANTITIES.__getitem__,
            **url.bind("norm", st.query_params.get("norm"), options),
        )
    rows = [each for each in found if _settings(each) == chosen]
    by_matrix = groupby(rows, key=lambda row: row.matrix)
    lines = [_line(name, list(of_matrix), quantity, place) for place, (name, of_matrix) in enumerate(by_matrix)]
    lines = [line for line in lines if line.x]
    label = f"exponent of {QUANTITIES[quantity]}"
    if lines:
        figure = curves(lines, x_title="step", y_title=label, words=_words, markers=True)
        figure.add_hline(y=0.5, line={"color": NEUTRAL, "dash": "dot", "width": 1.5})
        st.plotly_chart(figure, key="growth", config=CHART_CONFIG, alt=f"{label} by step; the numbers are in the CSV.")
    else:
        figure = None
        st.caption("No update of these runs is stored; at step 0 there is none.")
    first = rows[0]
    st.caption(
        f"b of σ ~ width^b, a line through logarithms over {count(first.runs)} runs of {count(first.widths)} widths, "
        f"{first.smallest_width:,.0f} to {first.largest_width:,.0f}. The dotted line is ½: noise of one size in every "
        "entry, and what the account of entropy collapse says of Adam (Proposition 3.2); a direction that all entries "
        "share gives 1. Behind ± is the standard error."
    )
    sql_and_data(
        "suite", f"{suite_id}-width", as_text(queries.GROWTH, suite=suite_id), pd.DataFrame(map(asdict, found)), figure
    )


def _settings(each: Exponent) -> str:
    decay = f", weight decay {each.weight_decay:g}" if each.weight_decay else ""
    return f"{each.variant}: {each.optimizer}, learning rate {each.learning_rate:g}{decay}"


def _line(matrix: str, rows: Sequence[Exponent], quantity: str, place: int) -> Curve:
    values = [
        (row.step, row.update_exponent, row.update_exponent_se)
        if quantity == "update"
        else (row.step, row.weight_exponent, row.weight_exponent_se)
        for row in rows
    ]
    there = [each for each in values if each[1] is not None]
    return Curve(
        matrix,
        [step for step, _, _ in there],
        [value for _, value, _ in there],
        place,
        hover=["" if error is None else f" ± {error:.2f}" for _, _, error in there],
    )


def _words(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
