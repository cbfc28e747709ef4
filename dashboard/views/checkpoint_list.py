"""The list of checkpoints: filters in the address, sizes with and without equal parts, pages by number."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import all_records
from dashboard.formats import NOTHING, byte_size, count, percent, told_apart
from dashboard.page_turning import page_buttons
from dashboard.pages import CHECKPOINTS
from dashboard.queries import checkpoints as queries
from dashboard.queries import runs as run_queries
from dashboard.queries.checkpoints import CheckpointLine, Filters
from dashboard.run_names import MOST_RUNS, picker_names
from services.contracts.checkpoints import REASONS

PAGE_ROWS = 25
DOWNLOAD_ROWS = 10_000
RUN_LETTERS = 22
FIRST_COMMAND = (
    "keyhole submit training --model config:gpt-tiny --dataset builtin:python-docs "
    "--set steps=500 --set checkpoints.every=100 --wait"
)
REASON_COLOURS = {
    "first": "gray",
    "interval": "blue",
    "log": "blue",
    "asked": "blue",
    "best": "green",
    "last": "orange",
    "resume": "gray",
    "imported": "violet",
}


def checkpoint_list() -> None:
    st.title("Checkpoints")
    st.markdown(
        "Models at steps of runs, stored with their tokenizer. Each is a model source of its own, `checkpoint:ID`, for "
        "every probe. Click a row for its commands, and for the jobs that measured it."
    )
    filters = _filters()
    with reading() as conn:
        page = queries.checkpoint_page(
            conn, filters, before=url.integer("before"), after=url.integer("after"), limit=PAGE_ROWS
        )
        sizes, storage = queries.sizes(conn, filters), queries.storage(conn)
    if not page.lines:
        _nothing(filters)
        return
    _sizes(sizes, storage, filtered=filters != Filters())
    _table(page.lines)
    page_buttons(page, lambda line: line.checkpoint_id)
    all_records("checkpoints", lambda: _records(filters), f"all that match the filters, up to {DOWNLOAD_ROWS:,}")


def _filters() -> Filters:
    asked = [*dict.fromkeys([*url.integers("runs"), *url.integers("run")])][:MOST_RUNS]
    if "run" in st.query_params:
        url.write("runs", asked)
        url.write("run", None)
    with reading() as conn:
        recent, chosen = run_queries.recent(conn), run_queries.lines(conn, asked)
    lines = {line.run_id: line for line in [*chosen, *recent]}
    options = sorted(lines, reverse=True)
    of_runs, reason, least, largest, loss, resumable = st.columns([9, 4, 2, 2, 2, 3], vertical_alignment="bottom")
    with of_runs:
        runs = st.multiselect(
            "Runs",
            options,
            format_func=picker_names(list(lines.values())).__getitem__,
            max_selections=MOST_RUNS,
            placeholder="of all runs",
            **_paged(url.bind("runs", asked, options)),
        )
    with reason:
        kept = [None, *REASONS]
        why = st.selectbox(
            "Kept because",
            kept,
            format_func=lambda each: each or "any reason",
            placeholder="any reason",
            **_paged(url.bind("reason", st.query_params.get("reason"), kept)),
        )
    return Filters(
        runs=tuple(runs),
        reason=why,
        least_step=_whole(least, "From step", "from"),
        largest_step=_whole(largest, "To step", "to"),
        largest_loss_nats=_loss(loss),
        resumable=resumable.toggle(
            "Resumable",
            value=st.query_params.get("resumable") == "yes",
            key="resumable_choice",
            on_change=_write_resumable,
            help="only those with the optimizer's state",
        ),
    )


def _whole(column: Any, label: str, name: str) -> int | None:
    st.session_state[f"{name}_choice"] = url.integer(name)
    return column.number_input(
        label,
        min_value=0,
        step=1,
        placeholder="any",
        **_paged({"key": f"{name}_choice", "on_change": lambda: url.write(name, st.session_state[f"{name}_choice"])}),
    )


def _loss(column: Any) -> float | None:
    given = st.query_params.get("loss")
    st.session_state["loss_choice"] = url.number("loss", 0.0, 0.0, 1000.0) if given else None
    return column.number_input(
        "Loss up to",
        min_value=0.0,
        max_value=1000.0,
        step=0.1,
        placeholder="any",
        help="validation loss in nats",
        **_paged({"key": "loss_choice", "on_change": lambda: url.write("loss", st.session_state["loss_choice"])}),
    )


def _write_resumable() -> None:
    url.write("resumable", "yes" if st.session_state["resumable_choice"] else None)
    _first_page()


def _paged(bound: dict[str, Any]) -> dict[str, Any]:
    """What a bound widget does, and back to the first page."""

    def changed() -> None:
        bound["on_change"]()
        _first_page()

    return {"key": bound["key"], "on_change": changed}


def _first_page() -> None:
    for cursor in ("before", "after"):
        st.query_params.pop(cursor, None)


def _nothing(filters: Filters) -> None:
    if filters != Filters():
        st.info("No checkpoint matches these filters. Clear one of them to see more.", icon=":material/filter_alt_off:")
        return
    st.info("There are no checkpoints yet. This command makes some:", icon=":material/rocket_launch:")
    st.code(FIRST_COMMAND, language="bash")


def _sizes(sizes: queries.Sizes, storage: queries.Storage, *, filtered: bool) -> None:
    told = "match" if filtered else "in all"
    st.markdown(
        f"**{count(sizes.checkpoints)}** checkpoints {told}, {byte_size(sizes.bytes)} of files. "
        f"All of them are stored in **{byte_size(storage.bytes)}**, since equal parts are stored once"
        + (f"; {byte_size(storage.bytes_outside)} of it outside of the database." if storage.bytes_outside else ".")
        + (f" Deleted ones still take {byte_size(storage.bytes_unused)}, for an hour." if storage.bytes_unused else "")
        + (
            f" That is {percent(storage.bytes / sizes.bytes)} of their size."
            if not filtered and sizes.bytes and storage.bytes <= sizes.bytes
            else ""
        )
    )


def _table(lines: Sequence[CheckpointLine]) -> None:
    st.session_state["checkpoints_listed"] = [line.checkpoint_id for line in lines]
    st.dataframe(
        checkpoint_frame(lines),
        key="checkpoint_table",
        hide_index=True,
        height=38 + 36 * len(lines),
        row_height=36,
        placeholder="–",
        on_select=_open_selected,
        selection_mode="single-cell",
        alt="Checkpoints, newest first. Click a row to open the checkpoint.",
        column_config=CHECKPOINT_COLUMNS,
    )
    if number := st.session_state.pop("checkpoint_opened", None):
        st.switch_page(CHECKPOINTS, query_params={"checkpoint": str(number)})


def _open_selected() -> None:
    numbers = st.session_state.get("checkpoints_listed", [])
    cells = st.session_state["checkpoint_table"]["selection"]["cells"]
    if cells and cells[0][0] < len(numbers):
        st.session_state["checkpoint_opened"] = numbers[cells[0][0]]


def checkpoint_frame(lines: Sequence[CheckpointLine]) -> pd.DataFrame:
    names = told_apart((" ".join(line.run.split()) for line in lines), RUN_LETTERS)
    return pd.DataFrame(
        {
            "Source": [f"checkpoint:{line.checkpoint_id}" for line in lines],
            "Run": [line.run_id for line in lines],
            "Name": [names[" ".join(line.run.split())] for line in lines],
            "Variant": [line.variant or NOTHING for line in lines],
            "Seed": [line.seed for line in lines],
            "Step": [line.step for line in lines],
            "Kept because": [line.reasons for line in lines],
            "Validation": [line.validation_loss_nats for line in lines],
            "Resumable": [line.resumable for line in lines],
            "Size": [byte_size(line.bytes) if line.bytes else NOTHING for line in lines],
            "Architecture": [line.model_type for line in lines],
            "Stored": [line.created_at for line in lines],
        }
    )


_column = st.column_config
CHECKPOINT_COLUMNS: dict[str, Any] = {
    "Source": _column.TextColumn(width=115, pinned=True, help="as --model of any probe"),
    "Run": _column.NumberColumn(format="%d", width=50),
    "Name": _column.TextColumn(width=185),
    "Variant": _column.TextColumn(width=110),
    "Seed": _column.NumberColumn(format="%d", width=50),
    "Step": _column.NumberColumn(format="localized", width=70),
    "Kept because": _column.MultiselectColumn(
        width=180, options=list(REASON_COLOURS), color=list(REASON_COLOURS.values())
    ),
    "Validation": _column.NumberColumn(format="%.4f", width=85, help="validation loss, nats"),
    "Resumable": _column.CheckboxColumn(width=90, help="whether the optimizer's state is with it"),
    "Size": _column.TextColumn(width=85, alignment="right"),
    "Architecture": _column.TextColumn(width=90),
    "Stored": _column.DatetimeColumn(format="distance", width=125),
}


def _records(filters: Filters) -> list[dict[str, object]]:
    with reading() as conn:
        return [asdict(line) for line in queries.checkpoint_page(conn, filters, limit=DOWNLOAD_ROWS).lines]
