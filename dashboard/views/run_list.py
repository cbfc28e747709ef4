"""The list of runs: filters in the address, a table to choose from, pages by number of the run.

Which runs are listed is decided when the page runs; what renews itself is their rows, so that a choice made in the
table stays on the runs it was made on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import url
from dashboard.connection import reading
from dashboard.downloads import all_records
from dashboard.formats import NOTHING, count, told_apart
from dashboard.live import RUNS_RENEW_S
from dashboard.page_turning import page_buttons
from dashboard.pages import RUNS
from dashboard.problems import show
from dashboard.queries import runs as run_queries
from dashboard.queries.runs import Filters, Options, RunLine
from dashboard.run_names import MOST_RUNS
from dashboard.views.job_list import STATE_COLOURS
from services.contracts.errors import KeyholeError
from services.contracts.states import TERMINAL_STATES, JobState

PAGE_ROWS = 25
DOWNLOAD_ROWS = 10_000
IMPORTED = "imported"
RUN_STATE_COLOURS = {**STATE_COLOURS, IMPORTED: "violet"}
NAME_LETTERS, MODEL_LETTERS = 22, 16
FIRST_COMMAND = (
    "keyhole submit training --model config:gpt-tiny --dataset builtin:python-docs --set steps=500 --label first --wait"
)


def run_list() -> None:
    st.title("Runs")
    st.markdown(
        "Training runs, the newest first. Choose rows to compare their curves, attention and spectral norms, or click "
        "a run to open it."
    )
    filters = _filters()
    with reading() as conn:
        counts = run_queries.state_counts(conn)
        page = run_queries.run_page(
            conn, filters, before=url.integer("before"), after=url.integer("after"), limit=PAGE_ROWS
        )
    _counts(counts)
    if not page.lines:
        _nothing(filters, any_run=bool(counts))
        return
    numbers = [line.run_id for line in page.lines]
    st.fragment(_table, run_every=RUNS_RENEW_S if any(map(in_motion, page.lines)) else None)(numbers)
    page_buttons(page, lambda line: line.run_id)
    all_records(
        "runs", lambda: _records(filters), f"all runs that match the filters, up to {DOWNLOAD_ROWS:,}, as they are now"
    )


def in_motion(run: RunLine) -> bool:
    """Whether the run may still change by itself."""
    return run.state != IMPORTED and JobState(run.state) not in TERMINAL_STATES


def _filters() -> Filters:
    with reading() as conn:
        options = run_queries.options(conn)
    text, variant, state, model, seed, suite = st.columns([3, 2, 2, 3, 1, 3])
    return Filters(
        text=text.text_input(
            "Search",
            key="text",
            placeholder="number, name, model or data set",
            on_change=_first_page,
            bind="query-params",
        )
        or "",
        variant=_choice(variant, "Variant", "variant", options.variants),
        state=_choice(state, "State", "state", list(RUN_STATE_COLOURS)),
        model=_choice(model, "Model", "model", options.models),
        seed=_numbered(seed, "Seed", "seed", options.seeds),
        suite=_numbered(suite, "Suite or sweep", "suite", list(options.suites), _suite_name(options)),
    )


def _choice(column: DeltaGenerator, label: str, key: str, options: list[str]) -> str | None:
    return column.selectbox(
        label, options, index=None, key=key, placeholder="any", on_change=_first_page, bind="query-params"
    )


def _numbered(
    column: DeltaGenerator,
    label: str,
    key: str,
    options: list[int],
    name: Callable[[int], str] = str,
) -> int | None:
    """A choice among numbers, which the address has as such."""
    bound = url.bind(key, url.integer(key), [None, *options])
    write = bound["on_change"]

    def changed() -> None:
        write()
        _first_page()

    return column.selectbox(
        label,
        [None, *options],
        format_func=lambda number: "any" if number is None else name(number),
        placeholder="any",
        key=bound["key"],
        on_change=changed,
    )


def _suite_name(options: Options) -> Callable[[int], str]:
    return lambda number: f"{number} · {options.suites[number]}"


def _first_page() -> None:
    for cursor in ("before", "after"):
        st.query_params.pop(cursor, None)


def _counts(counts: dict[str, int]) -> None:
    with st.container(horizontal=True, gap="small"):
        for state, colour in RUN_STATE_COLOURS.items():
            if counts.get(state):
                st.badge(f"{count(counts[state])} {state}", color=colour)  # type: ignore[arg-type]  # colours by name


def _nothing(filters: Filters, any_run: bool) -> None:
    if any_run and filters != Filters():
        st.info("No run matches these filters. Clear one of them to see more.", icon=":material/filter_alt_off:")
    elif any_run:
        st.info("There are no runs on this page of the list.")
        st.page_link(RUNS, label="To the newest runs", query_params={})
    else:
        st.info("There are no runs yet. This command trains a small one:", icon=":material/rocket_launch:")
        st.code(FIRST_COMMAND, language="bash")


def _table(numbers: list[int]) -> None:
    """The part that renews itself, and the buttons of what is chosen in it."""
    try:
        with reading() as conn:
            lines = run_queries.lines(conn, numbers)
    except KeyholeError as error:
        show(error)
        return
    key = f"run_table_{numbers[0]}_{numbers[-1]}_{len(numbers)}"
    shown = [line.run_id for line in lines]
    selection = st.dataframe(
        frame(lines),
        key=key,
        hide_index=True,
        height=38 + 36 * len(lines),
        row_height=36,
        placeholder="–",
        on_select="rerun",
        selection_mode=["multi-row", "single-cell"],
        alt="Runs, newest first. Choose rows to compare them; click a cell to open its run.",
        column_config=COLUMNS,
    )["selection"]
    if selection["cells"] and selection["cells"][0][0] < len(shown):
        st.switch_page(RUNS, query_params={"runs": str(shown[selection["cells"][0][0]])})
    chosen = [shown[row] for row in selection["rows"] if row < len(shown)]
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        label = f"Compare {count(len(chosen))} chosen" if chosen else "Compare all of this page"
        if st.button(label, icon=":material/compare_arrows:", type="primary" if chosen else "secondary"):
            st.switch_page(RUNS, query_params={"runs": ",".join(map(str, sorted((chosen or shown)[:MOST_RUNS])))})
        st.caption("Tick rows to choose runs; click a cell to open its run.")


def frame(lines: Sequence[RunLine]) -> pd.DataFrame:
    names = told_apart((" ".join(line.name.split()) for line in lines), NAME_LETTERS)
    models = told_apart((line.model for line in lines), MODEL_LETTERS)
    return pd.DataFrame(
        {
            "Run": [line.run_id for line in lines],
            "State": [[line.state] for line in lines],
            "Progress": [100 * line.steps_done / line.steps if line.steps else None for line in lines],
            "Name": [names[" ".join(line.name.split())] for line in lines],
            "Variant": [line.variant or NOTHING for line in lines],
            "Seed": [line.seed for line in lines],
            "lr": [line.learning_rate for line in lines],
            "wd": [line.weight_decay for line in lines],
            "Validation": [line.last_validation_loss_nats for line in lines],
            "Best": [line.best_validation_loss_nats for line in lines],
            "Bits/byte": [line.last_validation_bits_per_byte for line in lines],
            "Model": [models[line.model] for line in lines],
            "Submitted": [line.created_at for line in lines],
        }
    )


_column = st.column_config
COLUMNS: dict[str, Any] = {
    "Run": _column.NumberColumn(format="%d", width=50, pinned=True),
    "State": _column.MultiselectColumn(
        width=100, options=list(RUN_STATE_COLOURS), color=list(RUN_STATE_COLOURS.values())
    ),
    "Progress": _column.ProgressColumn(
        help="share of steps done", format="%.0f %%", min_value=0, max_value=100, width=100
    ),
    "Name": _column.TextColumn(width=185),
    "Variant": _column.TextColumn(width=100),
    "Seed": _column.NumberColumn(format="%d", width=50),
    "lr": _column.NumberColumn(format="%.3g", width=65, help="learning rate at the top of the schedule"),
    "wd": _column.NumberColumn(format="%.3g", width=60, help="weight decay"),
    "Validation": _column.NumberColumn(format="%.4f", width=85, help="latest validation loss, nats"),
    "Best": _column.NumberColumn(format="%.4f", width=75, help="lowest validation loss so far, nats"),
    "Bits/byte": _column.NumberColumn(format="%.4f", width=80, help="latest validation loss per byte of text"),
    "Model": _column.TextColumn(width=115),
    "Submitted": _column.DatetimeColumn(format="distance", width=120),
}


def _records(filters: Filters) -> list[dict[str, object]]:
    with reading() as conn:
        return [asdict(line) for line in run_queries.run_page(conn, filters, limit=DOWNLOAD_ROWS).lines]
