"""One layer of the shared-routing page: its distribution, and the tokens whose loss it changes most (Table 4)."""

import html
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.extra_loss import extra_loss_histogram, signed
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.job_choice import job_of_rows
from dashboard.job_names import titles
from dashboard.marked_text import told
from dashboard.queries import shared_routing as token_queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.shared_routing import Order, Token
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.views.shared_routing_model import DECADES, EXTRA, KIND, layer_name, layer_summaries

TOKENS = 20
BEFORE, AFTER = 24, 6  # tokens of text around the target

_TABLE = "overflow:hidden;width:100%;border-collapse:collapse;font-size:0.9rem"
_CELL = "padding:3px 8px;border-bottom:1px solid #8a919e55;vertical-align:top"
_NUMBER = f"{_CELL};text-align:right;white-space:nowrap"
_TEXT = f"{_CELL};overflow-wrap:anywhere"


def one_layer(jobs: Sequence[FinishedJob]) -> None:
    found = layer_summaries(jobs, [EXTRA, DECADES])
    extra = [s for s in found if s.metric == EXTRA and s.layer is not None]
    layers = sorted({s.layer for s in extra if s.layer is not None})
    if not layers:
        st.info("These jobs have no rows.", icon=":material/search_off:")
        return
    chosen = _layer(extra, layers)
    st.subheader(f"Layer {chosen}" if chosen >= 0 else "All layers at once")
    st.selectbox(
        "Layer",
        [layer_name(layer) for layer in layers],
        width=160,
        **url.bind("layer", layer_name(chosen), [layer_name(layer) for layer in layers]),
    )
    there = [job for job in jobs if any(s.job_id == job.job_id and s.layer == chosen for s in extra)]
    shown = [s for s in found if s.metric == DECADES and s.layer == chosen]
    figure = extra_loss_histogram(shown, titles(there))
    st.plotly_chart(
        figure,
        key="extra_loss",
        config=CHART_CONFIG,
        alt="Distribution of the extra loss over tokens at this layer, on a logarithmic axis with sign.",
    )
    sql_and_data(
        KIND,
        "distribution",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=[job.job_id for job in there], metrics=[DECADES]),
        pd.DataFrame([asdict(summary) for summary in shown]),
        figure,
    )
    _tokens(there, chosen)


def _layer(extra: Sequence[Summary], layers: Sequence[int]) -> int:
    """The layer of the address, else the one at which a token loses most."""
    asked = {layer_name(layer): layer for layer in layers}.get(st.query_params.get("layer", ""))
    if asked is not None:
        return asked
    most = max(extra, key=lambda summary: summary.maximum if summary.maximum is not None else 0.0)
    return most.layer if most.layer is not None else layers[0]


def _tokens(jobs: Sequence[FinishedJob], layer: int) -> None:
    st.markdown("**Tokens with the text around them**")
    orders = list(get_args(Order))
    left, right = st.columns([3, 2])
    with left:
        st.segmented_control(
            "Order",
            orders,
            required=True,
            label_visibility="collapsed",
            **url.bind("order", st.query_params.get("order"), orders),
        )
    order: Order = st.session_state["order_choice"] or orders[0]
    with right:
        job = job_of_rows(jobs)
    with reading() as conn:
        rows = token_queries.tokens(conn, job.job_id, layer, order, limit=TOKENS, before=BEFORE, after=AFTER)
    if not rows:
        st.caption("No rows are stored.")
        return
    st.html(token_table(rows))
    st.caption(
        "The scored token is in bold; its loss is that of the prediction made one position before it. "
        "⏎ stands for a line break. Loss: unmodified → changed, in nats."
    )
    sql_and_data(
        KIND,
        "tokens",
        as_text(token_queries.tokens_sql(order), job=job.job_id, layer=layer, limit=TOKENS, before=BEFORE, after=AFTER),
        pd.DataFrame([asdict(row) for row in rows]),
    )


def token_table(rows: Sequence[Token]) -> str:
    """Table 4 as HTML; the text is untrusted and escaped."""
    heads = "".join(
        f'<th style="{style}">{name}</th>'
        for name, style in (
            ("Sequence", _NUMBER),
            ("Position", _NUMBER),
            ("Text being scored", f"{_TEXT};text-align:left"),
            ("Loss", _NUMBER),
            ("Extra loss (nats)", _NUMBER),
        )
    )
    return f'<table style="{_TABLE}"><tr>{heads}</tr>{"".join(map(_row, rows))}</table>'


def _row(row: Token) -> str:
    unmodified = row.loss_nats - row.extra_loss_nats
    text = (
        f"<bdi>…{_visible(row.before)}<b style='background:#d9702b33'>{_visible(row.target)}</b>"
        f"{_visible(row.after)}</bdi>"
    )
    cells = [
        (_NUMBER, str(row.sequence)),
        (_NUMBER, str(row.query + 1)),
        (_TEXT, text),
        (_NUMBER, f"{unmodified:.2f} → {row.loss_nats:.2f}"),
        (_NUMBER, signed(row.extra_loss_nats)),
    ]
    return "<tr>" + "".join(f'<td style="{style}">{cell}</td>' for style, cell in cells) + "</tr>"


def _visible(text: str | None) -> str:
    """Escaped, cut and spelled out where it must be, with line breaks as signs."""
    return html.escape(told(text or "").replace("\n", "⏎").replace("\t", "⇥"))
