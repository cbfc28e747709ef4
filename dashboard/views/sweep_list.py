"""The list of sweeps, found by name."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, shortened
from dashboard.live import RUNS_RENEW_S
from dashboard.pages import SWEEPS
from dashboard.problems import show
from dashboard.queries import sweeps as queries
from dashboard.queries.sweeps import SweepLine
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from services.contracts.errors import KeyholeError

FIRST_COMMAND = (
    "keyhole sweep --model config:gpt-tiny --dataset builtin:python-docs --variant control --variant natq \\\n"
    "  --axis optimizer.learning_rate=0.001,0.003 --axis optimizer.weight_decay=0,0.1 --seed 0,1 \\\n"
    "  --set steps=200 --wait"
)


def sweep_list() -> None:
    st.title("Sweeps")
    st.markdown(
        "One training in several settings, with several variants and seeds: which setting suits each variant best, "
        "and whether variants differ by more than seeds."
    )
    text = st.text_input("Search", key="text", placeholder="part of the name", bind="query-params") or ""
    with reading() as conn:
        moving = any(not line.ended for line in queries.sweeps(conn, text))
    st.fragment(_list, run_every=RUNS_RENEW_S if moving else None)(text)


def _list(text: str) -> None:
    try:
        with reading() as conn:
            found = queries.sweeps(conn, text)
    except KeyholeError as error:
        show(error)
        return
    if not found:
        if text:
            st.info("No sweep has that in its name.", icon=":material/filter_alt_off:")
        else:
            st.info("There are no sweeps yet. This command submits one:", icon=":material/rocket_launch:")
            st.code(FIRST_COMMAND, language="bash")
        return
    selection = st.dataframe(
        _frame(found),
        key="sweep_table",
        placeholder="–",
        hide_index=True,
        height=rows_height(len(found), at_most=20),
        on_select="rerun",
        selection_mode="single-cell",
        alt="Sweeps, newest first. Click a row to open the sweep.",
        column_config={
            "Sweep": st.column_config.NumberColumn(format="%d", width=60, pinned=True),
            "Name": st.column_config.TextColumn(width=230),
            **{
                name: st.column_config.NumberColumn(width=75)
                for name in ("Members", "Succeeded", "Failed", "Cancelled")
            },
            "Seeds": st.column_config.NumberColumn(width=55),
            "Progress": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0, max_value=100, width=100, help="share of all steps done"
            ),
            "Variants": st.column_config.TextColumn(width=110),
            "Axes": st.column_config.TextColumn(width=180),
            "Lowest": st.column_config.NumberColumn(format="%.4f", width=70, help="lowest final validation loss, nats"),
            "Submitted": st.column_config.DatetimeColumn(format="distance", width=120),
        },
    )["selection"]
    if selection["cells"] and selection["cells"][0][0] < len(found):
        st.switch_page(SWEEPS, query_params={"sweep": str(found[selection["cells"][0][0]].sweep_id)})
    st.caption("Click a row to open the sweep.")
    statement = as_text(
        queries.SWEEPS.replace(" AND (%(sweep)s::int IS NULL OR sweep.id = %(sweep)s)", ""),
        text=text,
        limit=queries.MOST_SWEEPS,
    )
    sql_and_data("sweeps", "list", statement, pd.DataFrame(map(asdict, found)))


def _frame(found: Sequence[SweepLine]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Sweep": [line.sweep_id for line in found],
            "Name": [shortened(line.name, 50) for line in found],
            "Progress": [100 * line.steps_done / line.steps if line.steps else 0 for line in found],
            "Members": [line.members for line in found],
            "Succeeded": [line.succeeded for line in found],
            "Failed": [line.failed for line in found],
            "Cancelled": [line.cancelled for line in found],
            "Variants": [", ".join(line.variants) for line in found],
            "Axes": [", ".join(name.rpartition(".")[2] for name in line.axes or {}) or NOTHING for line in found],
            "Seeds": [line.seeds for line in found],
            "Lowest": [line.lowest_nats for line in found],
            "By": [line.submitted_by or NOTHING for line in found],
            "Submitted": [line.created_at for line in found],
        }
    )
