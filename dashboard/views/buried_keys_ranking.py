"""The part of the buried-keys page that lists keys, tokens and abstaining queries of one job, to pick an example."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import percent
from dashboard.job_choice import job_of_rows
from dashboard.marked_text import ending, visible
from dashboard.queries import buried_keys as queries
from dashboard.queries.buried_keys import Filters, KeyRow, Order
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.buried_keys_model import KIND

Example = tuple[int, int, int]  # layer, sequence, query
ROWS = 50
TOKENS_BEFORE = 10
_BEFORE_WIDTH, _LETTERS = 150, 17  # pixels of a column with the text before a token, and what fits
DIRECTIONS = {"more": 1, "less": -1}
LEAST_RANKS = [1, 10, 30, 100, 300, 1000]
_ALL = "all"
_KEYS, _TOKENS, _ABSTAINING = "keys", "tokens", "abstaining queries"
_ORDERS: list[Order] = list(get_args(Order))


def ranking(jobs: Sequence[FinishedJob]) -> tuple[FinishedJob, Example | None]:
    """The lists with their filters; returns the job and the chosen example, that of the address or the list's first."""
    st.subheader("Strongest keys of the corpus")
    job = job_of_rows(jobs)
    show, filters, order = _filters(job)
    first = {_KEYS: _keys, _TOKENS: _tokens, _ABSTAINING: _abstaining}[show](job, filters, order)
    return job, _asked() or first


def _asked() -> Example | None:
    parts = st.query_params.get("example", "").split(",")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        layer, sequence, query = map(int, parts)
        return layer, sequence, query
    return None


def _filters(job: FinishedJob) -> tuple[str, Filters, Order]:
    with reading() as conn:
        layers = queries.layers(conn, [job.job_id])
    shows = [_KEYS, _TOKENS, _ABSTAINING]
    left, right = st.columns([2, 2])
    with left:
        st.segmented_control(
            "List",
            shows,
            required=True,
            label_visibility="collapsed",
            **url.bind("show", st.query_params.get("show"), shows),
        )
    show = st.session_state["show_choice"] or _KEYS
    if show == _KEYS:
        with right:
            st.segmented_control(
                "Order",
                _ORDERS,
                required=True,
                label_visibility="collapsed",
                **url.bind("order", st.query_params.get("order"), _ORDERS),
            )
    order: Order = st.session_state.get("order_choice") or _ORDERS[0]
    columns = st.columns(4)
    every: list[int | str] = [_ALL, *layers]
    with columns[0]:
        picked = st.selectbox("Layer", every, **url.bind("layer", url.integer("layer"), every))
        layer = picked if isinstance(picked, int) else None
    if show == _ABSTAINING:
        return show, Filters(layer=layer), order
    with columns[1]:
        directions = [_ALL, *DIRECTIONS]
        direction = st.selectbox(
            "Heads agree on",
            directions,
            format_func=lambda name: "either" if name == _ALL else f"{name} attention",
            **url.bind("direction", st.query_params.get("direction"), directions),
        )
    with columns[2]:
        least_rank = st.selectbox(
            "Attention rank in every agreeing head",
            LEAST_RANKS,
            format_func=lambda rank: "any" if rank == 1 else f"{rank:,} or more",
            **url.bind("rank", url.integer("rank"), LEAST_RANKS),
        )
    with columns[3]:
        st.session_state["token_field"] = st.query_params.get("token", "")
        text = st.text_input(
            "Key's token contains",
            key="token_field",
            on_change=lambda: url.write("token", st.session_state["token_field"]),
        )
    return show, Filters(layer, DIRECTIONS.get(direction or _ALL), least_rank, text), order


def _keys(job: FinishedJob, filters: Filters, order: Order) -> Example | None:
    with reading() as conn:
        rows = queries.key_rows(conn, job.job_id, filters, order, limit=ROWS, before=TOKENS_BEFORE)
    examples = [(row.layer, row.sequence, row.query) for row in rows]
    if not rows:
        st.info("No qualifying key is stored with these properties.", icon=":material/search_off:")
        return None
    st.dataframe(
        pd.DataFrame([_key_line(row) for row in rows]),
        hide_index=True,
        key="key_rows",
        height=rows_height(len(rows), at_most=10),
        on_select=_row_clicked("key_rows", examples),
        selection_mode="single-row",
        column_config={
            "Key": st.column_config.TextColumn(width=120, help="the key's token"),
            "Before the key": st.column_config.TextColumn(width=_BEFORE_WIDTH, alignment="right"),
            "Query": st.column_config.TextColumn(width=120, help="the query's own token"),
            "Before the query": st.column_config.TextColumn(width=_BEFORE_WIDTH, alignment="right"),
            "Ranks": st.column_config.TextColumn(
                width=140,
                help="attention rank of the key in the agreeing heads: smallest, median and largest",
            ),
            "Heads": st.column_config.NumberColumn(help="heads that agree", width=65),
            "Score": st.column_config.NumberColumn(format="%.1f", width=60),
            "Weight": st.column_config.NumberColumn(
                format="%.2g", width=95, help="largest attention weight in the agreeing heads"
            ),
            "For": st.column_config.TextColumn(width=55, help="more or less attention"),
        }
        | {
            name: st.column_config.NumberColumn(width=width, format="%d")
            for name, width in (("Layer", 60), ("Sequence", 90), ("At", 55), ("Key at", 70))
        },
    )
    first = f"The first {ROWS}. " if len(rows) == ROWS else ""
    st.caption(f"{first}Choose a row to see the query below.")
    values = {"job": job.job_id, "limit": ROWS, "before": TOKENS_BEFORE, **filters.values()}
    sql_and_data(
        KIND, "keys", as_text(queries.key_rows_sql(filters, order), **values), pd.DataFrame([asdict(r) for r in rows])
    )
    return examples[0]


def _key_line(row: KeyRow) -> dict[str, object]:
    return {
        "Layer": row.layer,
        "Score": row.score,
        "Heads": row.heads,
        "For": "more" if row.direction > 0 else "less",
        "Ranks": " · ".join(
            f"{rank:,.10g}"
            for rank in (row.attention_rank_smallest, row.attention_rank_median, row.attention_rank_largest)
        ),
        "Before the key": ending(row.key_context, _LETTERS),
        "Key": visible(row.key_token),
        "Before the query": ending(row.query_context, _LETTERS),
        "Query": visible(row.query_token),
        "Weight": row.largest_weight,
        "Key at": row.key,
        "At": row.query,
        "Sequence": row.sequence,
    }


def _tokens(job: FinishedJob, filters: Filters, order: Order) -> Example | None:
    with reading() as conn:
        rows = queries.token_rows(conn, job.job_id, filters, limit=ROWS)
        first = queries.key_rows(conn, job.job_id, filters, order, limit=1, before=TOKENS_BEFORE)
    if not rows:
        st.info("No token's text is known for such keys.", icon=":material/search_off:")
    else:
        st.dataframe(
            pd.DataFrame(
                [
                    {
                        "Token": visible(row.token),
                        "Keys": row.keys,
                        "For less": percent(row.share_less),
                        "Mean score": row.mean_score,
                        "Largest score": row.largest_score,
                        "Median rank": row.median_rank,
                    }
                    for row in rows
                ]
            ),
            hide_index=True,
            key="token_rows",
            height=rows_height(len(rows), at_most=10),
            column_config={
                "Keys": st.column_config.NumberColumn(help="qualifying keys that are this token", format="localized"),
                "For less": st.column_config.TextColumn(alignment="right"),
                "Mean score": st.column_config.NumberColumn(format="%.1f"),
                "Largest score": st.column_config.NumberColumn(format="%.1f"),
                "Median rank": st.column_config.NumberColumn(format="%.0f"),
            },
        )
        st.caption(f"Texts of the stored qualifying keys, the {ROWS} most frequent at most.")
        values = {"job": job.job_id, "limit": ROWS, **filters.values()}
        frame = pd.DataFrame([asdict(row) for row in rows])
        sql_and_data(KIND, "tokens", as_text(queries.tokens_sql(filters), **values), frame)
    return (first[0].layer, first[0].sequence, first[0].query) if first else None


def _abstaining(job: FinishedJob, filters: Filters, order: Order) -> Example | None:
    with reading() as conn:
        rows = queries.abstaining_rows(conn, job.job_id, filters.layer, limit=ROWS, before=TOKENS_BEFORE)
    if not rows:
        st.info("Every query has a qualifying key there.", icon=":material/search_off:")
        return None
    examples = [(row.layer, row.sequence, row.query) for row in rows]
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "Layer": row.layer,
                    "Sequence": row.sequence,
                    "At": row.query,
                    "Most heads": row.most_heads,
                    "Before the query": visible(row.query_context),
                    "Query": visible(row.query_token),
                }
                for row in rows
            ]
        ),
        hide_index=True,
        key="abstaining_rows",
        height=rows_height(len(rows), at_most=10),
        on_select=_row_clicked("abstaining_rows", examples),
        selection_mode="single-row",
        column_config={
            "Before the query": st.column_config.TextColumn(width="large", alignment="right"),
            "Most heads": st.column_config.NumberColumn(help="most heads that picked one key with one sign: too few"),
        },
    )
    st.caption(f"Queries on which the heads do not agree, the closest first, {ROWS} at most.")
    values = {"job": job.job_id, "layer": filters.layer, "limit": ROWS, "before": TOKENS_BEFORE}
    frame = pd.DataFrame([asdict(row) for row in rows])
    sql_and_data(KIND, "abstaining", as_text(queries.abstaining_sql(filters.layer), **values), frame)
    return examples[0]


def _row_clicked(key: str, examples: Sequence[Example]) -> Callable[[], None]:
    def write() -> None:
        chosen = st.session_state[key]["selection"]["rows"]
        url.write("example", list(examples[chosen[0]]) if chosen and chosen[0] < len(examples) else None)

    return write
