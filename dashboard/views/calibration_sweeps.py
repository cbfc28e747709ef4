"""The part of the calibration page with the transfer sweeps: Table 8, and one sweep's curves with its text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.transfer_sweep import FIRST_KEY, SECOND_KEY, transfer_sweep
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING
from dashboard.job_names import titles
from dashboard.marked_text import Mark, ending, legend, marked_text, visible
from dashboard.queries import calibration as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.calibration import Order, Sweep
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.calibration_model import KIND

ROWS = 50
TOKENS_BEFORE = 6
_TEXT_WIDTH, _LETTERS = 150, 17  # pixels of a column with text, and what fits
TOKENS_BEFORE_ANCHOR = 40  # of the whole text
NEAR = 30  # tokens of text shown on both sides of the query and the anchors
ALL, ANY_R = "all", 1e30
QUERY_COLOUR = "#9a5bc4"
# Table 8 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop): Qwen2.5-0.5B, teacher Qwen2.5-1.5B
ARTICLE = (
    ("Larry Kim, Founder and Chief …", "Document boundary versus “Larry Kim, Founder”", 0.098, 0.471, 0.0397),
    ("on a temporary basis …", "Two earlier sentence endings", 0.010, 0.343, 0.0053),
    ("score some more goals …", "Two earlier sentence endings", 0.084, 0.373, 0.0279),
    ("revenue less than Google …", "“industry's” versus a date/list boundary", 0.090, 0.214, 0.0198),
)


def sweeps(jobs: Sequence[FinishedJob]) -> None:
    """The list with its filters, the article's rows, and the sweep that was chosen."""
    st.subheader("Attention-transfer sweeps")
    st.markdown(
        "In one head and query, c is added to the score of one anchor and subtracted from that of another. Where r is "
        "small, the observed token's loss should move by much more than the loss averaged over the teacher's tokens: "
        "the sweep goes along an axis on which attention is calibrated."
    )
    ids, names = [job.job_id for job in jobs], titles(jobs)
    order, layer, most = _filters(ids)
    with reading() as conn:
        found = queries.sweeps(conn, ids, order, layer=layer, most=most, limit=ROWS, before=TOKENS_BEFORE)
    if not found:
        st.info(
            "No sweep is stored with these properties. A job makes `sweeps_per_sequence` of them in each sequence.",
            icon=":material/search_off:",
        )
    else:
        _table(found, several=len(jobs) > 1)
        values = {"jobs": ids, "layer": layer, "most": most, "limit": ROWS, "before": TOKENS_BEFORE}
        frame = pd.DataFrame([asdict(sweep) for sweep in found])
        sql_and_data(KIND, "sweeps", as_text(queries.sweeps_sql(order, layer), **values), frame)
    with st.expander("Table 8 of the article", expanded=True):
        st.dataframe(
            pd.DataFrame(ARTICLE, columns=["Query", "Competing anchors", "r", "Δ hard (nat)", "Δ soft (nat)"]),
            hide_index=True,
            key="article_sweeps",
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in ("Δ soft (nat)",)},
        )
        st.caption("Four low-ratio examples of Qwen2.5-0.5B away from the first token, c from −3 to 3.")
    _one(_asked(ids) or (found[0].place if found else None), names)


def _filters(ids: list[int]) -> tuple[Order, int | None, float]:
    with reading() as conn:
        layers, _ = summary_queries.extent(conn, ids)
    orders: list[Order] = list(get_args(Order))
    every = [ALL, *map(str, layers)]
    left, middle, right = st.columns([3, 1, 1], vertical_alignment="bottom")
    with left:
        st.segmented_control(
            "Order of the sweeps",
            orders,
            required=True,
            **url.bind("sweeps", st.query_params.get("sweeps"), orders),
        )
    with middle:
        layer = st.selectbox(
            "Layer of the sweeps", every, **url.bind("sweep_layer", st.query_params.get("sweep_layer"), every)
        )
    with right:
        most = st.number_input(
            "r at most",
            min_value=0.0,
            max_value=10.0,
            step=0.05,
            help="10 shows all",
            **url.bind_number("r", url.number("r", 10.0, 0.0, 10.0)),
        )
    order: Order = st.session_state["sweeps_choice"] or orders[0]
    return order, None if layer == ALL else int(layer), ANY_R if most is None or most >= 10 else most


def _table(found: Sequence[Sweep], several: bool) -> None:
    st.dataframe(
        pd.DataFrame([({"Job": sweep.job_id} if several else {}) | _line(sweep) for sweep in found]),
        hide_index=True,
        key="sweeps",
        height=rows_height(len(found), at_most=10),
        on_select=_row_clicked([sweep.place for sweep in found]),
        selection_mode="single-row",
        column_config={
            "Query": st.column_config.TextColumn(
                width=_TEXT_WIDTH, alignment="right", help="text that ends with the query's token"
            ),
            "Next": st.column_config.TextColumn(width=115, help="the token observed behind the query"),
            "First anchor": st.column_config.TextColumn(width=_TEXT_WIDTH, alignment="right", help="its score gets +c"),
            "Second anchor": st.column_config.TextColumn(
                width=_TEXT_WIDTH, alignment="right", help="its score gets −c"
            ),
            "r": st.column_config.NumberColumn(format="%.3f", width=60),
            "Δ hard (nat)": st.column_config.NumberColumn(
                format="%.3f", width=90, help="largest minus smallest loss of the observed token along the sweep"
            ),
            "Δ soft (nat)": st.column_config.NumberColumn(
                format="%.4f", width=90, help="the same of the loss averaged over the teacher's tokens"
            ),
            "Weights": st.column_config.TextColumn(width=95, help="of the anchors at c = 0"),
            "Named": st.column_config.CheckboxColumn(width=65, help="anchors given with the job"),
        }
        | {
            name: st.column_config.NumberColumn(width=width, format="%d")
            for name, width in (("Job", 50), ("Layer", 60), ("Head", 60), ("Sequence", 90), ("At", 55))
            if several or name != "Job"
        },
    )
    st.caption(
        "Choose a row to see its curves below. Δ: largest minus smallest loss of the sweep. Unless named, anchors are "
        "the row's two most attended keys, both behind the first token"
        + (f"; the first {ROWS} are shown." if len(found) == ROWS else ".")
    )


def _line(sweep: Sweep) -> dict[str, object]:
    return {
        "Query": ending(sweep.query_text, _LETTERS) or NOTHING,
        "Next": visible(sweep.next_token),
        "First anchor": ending(sweep.first_text, _LETTERS) or NOTHING,
        "Second anchor": ending(sweep.second_text, _LETTERS) or NOTHING,
        "r": sweep.r,
        "Δ hard (nat)": sweep.hard_change_nats,
        "Δ soft (nat)": sweep.soft_change_nats,
        "Weights": f"{_weight(sweep.first_weight)} · {_weight(sweep.second_weight)}",
        "Layer": sweep.layer,
        "Head": sweep.head,
        "Sequence": sweep.sequence,
        "At": sweep.query,
        "Named": not sweep.chosen,
    }


def _weight(weight: float | None) -> str:
    return NOTHING if weight is None else f"{weight:.2f}"


def _row_clicked(places: Sequence[tuple[int, ...]]) -> Callable[[], None]:
    def write() -> None:
        chosen = st.session_state["sweeps"]["selection"]["rows"]
        url.write("sweep", list(places[chosen[0]]) if chosen and chosen[0] < len(places) else None)

    return write


def _asked(ids: Sequence[int]) -> tuple[int, ...] | None:
    """The sweep of the address: job, layer, head, sequence, query and the two keys, if the job is on the page."""
    parts = st.query_params.get("sweep", "").split(",")
    if len(parts) != 7 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    place = tuple(map(int, parts))
    return place if place[0] in ids else None


def _one(place: tuple[int, ...] | None, names: dict[int, str]) -> None:
    if place is None:
        return
    with reading() as conn:
        sweep = queries.one_sweep(conn, place, before=TOKENS_BEFORE)
        points = queries.points(conn, sweep) if sweep else []
        first = max(0, min(place[5:]) - TOKENS_BEFORE_ANCHOR)
        tokens = queries.tokens(conn, place[0], place[3], first, place[4] + 1) if sweep else []
    if sweep is None:
        st.warning(f"Job {place[0]} has no such sweep.", icon=":material/search_off:")
        return
    st.markdown(
        f"**Layer {sweep.layer}, head {sweep.head}, sequence {sweep.sequence}, query {sweep.query}: r = {sweep.r:.3f}, "
        f"hard loss changes by {sweep.hard_change_nats:.3f} nats, soft loss by {sweep.soft_change_nats:.4f}**"
        + (f" (job {sweep.job_id})" if len(names) > 1 else "")
    )
    texts = {token.position: visible(token.text, token.token_id) for token in tokens}
    anchors = [f"{texts.get(key, '')} ({key})" for key in (sweep.first_key, sweep.second_key)]
    figure = transfer_sweep(points, *anchors)
    st.plotly_chart(
        figure,
        key="sweep",
        config=CHART_CONFIG,
        alt="Hard and soft loss along c, and the weights of both anchors; the same numbers are in the CSV below.",
    )
    marks = {
        sweep.query: Mark(QUERY_COLOUR, f"query {sweep.query}"),
        sweep.query + 1: Mark(QUERY_COLOUR, "the observed next token", filled=False),
        sweep.first_key: Mark(FIRST_KEY, f"first anchor, key {sweep.first_key}: +c"),
        sweep.second_key: Mark(SECOND_KEY, f"second anchor, key {sweep.second_key}: −c"),
    }
    text = [(token.position, f" #{token.token_id}" if token.text is None else token.text) for token in tokens]
    whole = st.toggle("Whole text from the anchors to the query", key="whole", bind="query-params")
    near = None if whole else dict.fromkeys(marks, NEAR)
    st.html(legend(list(marks.values())) + marked_text(text, marks, near))
    frame = pd.DataFrame([asdict(point) for point in points])
    sql_and_data(KIND, "sweep", as_text(queries.POINTS, **queries.point_values(sweep)), frame, figure)
