"""One sweep: the best setting of each variant, whether they differ, losses over the axes, and all members."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.setting_grid import Cell, Panel, setting_grid, value_words
from dashboard.charts.setting_lines import SettingLine, setting_lines
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import count, markdown_text, moment, shortened
from dashboard.live import RUNS_RENEW_S
from dashboard.pages import NATQ_TRAINING, RUNS, SUITES, SWEEPS
from dashboard.problems import show
from dashboard.queries import sweeps as queries
from dashboard.queries.sweeps import Member, SweepLine
from dashboard.queries.text import as_text
from dashboard.run_names import MOST_RUNS
from dashboard.sweep_words import (
    difference_words,
    lead_words,
    noise_words,
    result_of,
    setting_words,
    turned,
    with_spread,
)
from dashboard.tables import rows_height
from dashboard.views.job_list import STATE_COLOURS
from db.sweep_results import SettingResult, SweepResult
from services.contracts.errors import KeyholeError
from services.contracts.training.variants import CONTROL

DELETED = "deleted"  # state of a member whose job was


def sweep_detail(number: int) -> None:
    st.page_link(SWEEPS, label="All sweeps", icon=":material/arrow_back:", query_params={})
    with reading() as conn:
        found = queries.sweep(conn, number)
        members = queries.members(conn, number) if found else []
    st.title(f"Sweep {number}")
    if found is None or not members:
        st.warning(f"There is no sweep {number}, or its jobs were deleted.", icon=":material/search_off:")
        return
    st.markdown(f"**{markdown_text(found.name)}**")
    st.text(f"{shortened(found.model, 90)} over {shortened(found.dataset, 60)}")
    submitter = f" by {markdown_text(found.submitted_by)}" if found.submitted_by else ""
    st.caption(f"Submitted {moment(found.created_at)}{submitter}")
    axes = _axes(members)
    chosen = _axis_pickers(axes)
    st.fragment(_live, run_every=None if found.ended else RUNS_RENEW_S)(number, found.ended, chosen)


def _live(number: int, ended_before: bool, chosen: Sequence[str]) -> None:
    try:
        with reading() as conn:
            found, members = queries.sweep(conn, number), queries.members(conn, number)
    except KeyholeError as error:
        show(error)
        return
    if found is None or found.ended != ended_before:
        st.rerun()  # gone, or nothing more to renew
    _counts(members)
    result = result_of(members)
    _links(found, members, result)
    _verdicts(number, result)
    if chosen:
        _over_axes(number, members, result, chosen)
    _members(number, members)


def _axes(members: Sequence[Member]) -> dict[str, list[Any]]:
    """Values by axis, of the axes that have several; whatever they are, numbers or not."""
    values: dict[str, dict[str, Any]] = {}
    for member in members:
        for name, value in member.setting.items():
            values.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value
    several = {name: list(found.values()) for name, found in values.items() if len(found) > 1}
    return {
        name: several[name] for name in sorted(several, key=lambda name: (not name.endswith("learning_rate"), name))
    }


def _axis_pickers(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """One or two axes; pickers where there are more than two."""
    names = list(axes)
    if len(names) <= 2:
        return names
    left, right, _ = st.columns([1, 1, 2])
    with left:
        first = st.selectbox("Across", names, **url.bind("across", st.query_params.get("across"), names))
    rest = [name for name in names if name != first]
    with right:
        second = st.selectbox("Down", rest, **url.bind("down", st.query_params.get("down"), rest))
    return [first or names[0], second or rest[0]]


def _counts(members: Sequence[Member]) -> None:
    with st.container(horizontal=True, gap="small"):
        for state, colour in STATE_COLOURS.items():
            number = sum(member.state == state for member in members)
            if number:
                st.badge(f"{count(number)} {state}", color=colour)  # type: ignore[arg-type]  # colours by name
        deleted = sum(member.state == DELETED for member in members)
        if deleted:
            st.badge(f"{count(deleted)} deleted", color="gray")
        stopped = sum(member.stopped is not None for member in members)
        if stopped:
            st.badge(f"{count(stopped)} given up early", color="orange")


def _links(found: SweepLine, members: Sequence[Member], result: SweepResult) -> None:
    best = best_runs(members, result)
    runs = [member.run_id for member in members if member.run_id is not None]
    every = runs[:MOST_RUNS]
    with st.container(horizontal=True, gap="small"):
        if best:
            st.page_link(
                RUNS,
                label=f"Curves of the best settings ({len(best)})",
                icon=":material/show_chart:",
                query_params={"runs": ",".join(map(str, best)), "show": "seeds"},
            )
        if every:
            st.page_link(
                RUNS,
                label=f"Curves of {'all' if len(every) == len(runs) else 'the first'} {len(every)} runs",
                icon=":material/show_chart:",
                query_params={"runs": ",".join(map(str, every))},
            )
        if len(found.variants) > 1:
            st.page_link(
                NATQ_TRAINING,
                label="Variants compared",
                icon=":material/science:",
                query_params={"sweep": str(found.sweep_id)},
            )
        st.page_link(
            SUITES,
            label=f"Suite {found.suite_id}",
            icon=":material/library_books:",
            query_params={"suite": str(found.suite_id)},
        )


def best_runs(members: Sequence[Member], result: SweepResult) -> list[int]:
    """Runs of the best setting of each variant, all its seeds."""
    return [
        member.run_id
        for member in members
        if member.run_id is not None
        and member.variant in result.best
        and member.setting == result.best[member.variant].setting
    ][:MOST_RUNS]


def _verdicts(number: int, result: SweepResult) -> None:
    st.subheader("Best setting of each variant")
    if not result.best:
        st.caption("No member has come to its last step yet.")
        return
    names = list(next(iter(result.best.values())).setting)
    leads = {lead.variant: lead for lead in result.leads}
    shown = pd.DataFrame(
        {
            "Variant": list(result.best),
            **{name: [value_words(each.setting.get(name)) for each in result.best.values()] for name in names},
            "Final validation loss": [each.mean_nats for each in result.best.values()],
            "Standard deviation": [each.sd_nats for each in result.best.values()],
            "Ahead of the next": [lead_words(leads.get(variant)) for variant in result.best],
            "Seeds": [f"{len(each.losses_nats)} of {each.seeds}" for each in result.best.values()],
        }
    )
    st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        key="best_table",
        height=rows_height(len(shown), at_most=12),
        column_config={
            "Variant": st.column_config.TextColumn(width=200, pinned=True),
            "Final validation loss": st.column_config.NumberColumn(format="%.4f", help="nats, mean over seeds"),
            "Standard deviation": st.column_config.NumberColumn(format="%.4f", help="over the seeds of this setting"),
            "Ahead of the next": st.column_config.TextColumn(
                help="nats below the variant's next setting of as many seeds, and whether that is more than seed noise"
            ),
            "Seeds": st.column_config.TextColumn(help="finished, of all"),
        },
    )
    reference = CONTROL if CONTROL in result.best else next(iter(result.best))
    for difference in result.differences:
        if reference in (difference.first, difference.second):
            told = turned(difference, reference)
            st.markdown(f"- {difference_words(told)}")
    if result.lacking is not None:
        st.markdown(markdown_text(result.lacking))
    st.caption(
        f"{noise_words(result.noise)} A difference counts if chance alone would reach it in less than one of twenty "
        "cases (Student's t, two-sided). The best of several settings is lower than its expectation by luck, for all "
        "variants alike."
    )
    sql_and_data("sweep", "best", as_text(queries.MEMBERS, sweep=number), shown)


def _over_axes(number: int, members: Sequence[Member], result: SweepResult, chosen: Sequence[str]) -> None:
    st.subheader("Final validation loss over the axes")
    variants = dict.fromkeys(member.variant for member in members)
    if len(chosen) == 1:
        lines = [SettingLine(variant, _of(result, variant)) for variant in variants]
        figure = setting_lines(lines, chosen[0])
    else:
        figure = setting_grid([_panel(result, variant, chosen) for variant in variants], chosen[0], chosen[1])
    st.plotly_chart(
        figure, key="over_axes", config=CHART_CONFIG, alt="Final validation loss by setting; numbers are in the CSV."
    )
    others = len(members[0].setting) > len(chosen)
    told = "bars: one standard deviation" if len(chosen) == 1 else "framed: the best setting of a variant"
    st.caption(
        f"Means over the seeds that finished; {told}."
        + (" Of settings that differ in other axes only, the lowest is shown." if others else "")
    )
    data = pd.DataFrame(
        [
            {"variant": each.variant, **each.setting, "mean_nats": each.mean_nats, "sd_nats": each.sd_nats}
            | {"finished": len(each.losses_nats), "seeds": each.seeds}
            for each in result.settings
        ]
    )
    sql_and_data("sweep", "settings", as_text(queries.MEMBERS, sweep=number), data, figure)


def _of(result: SweepResult, variant: str) -> list[SettingResult]:
    return [each for each in result.settings if each.variant == variant]


def _panel(result: SweepResult, variant: str, chosen: Sequence[str]) -> Panel:
    lowest: dict[str, SettingResult] = {}
    for each in _of(result, variant):
        key = json.dumps([each.setting.get(name) for name in chosen], sort_keys=True)
        before = lowest.get(key)
        if before is None or (each.mean_nats or float("inf")) < (before.mean_nats or float("inf")):
            lowest[key] = each
    best = result.best.get(variant)
    cells = [
        Cell(
            each.setting.get(chosen[0]),
            each.setting.get(chosen[1]),
            each.mean_nats,
            f"{setting_words(each.setting)}<br>{with_spread(each.losses_nats)} nats, "
            f"{len(each.losses_nats)} of {each.seeds} seeds",
            best=each is best,
        )
        for each in lowest.values()
    ]
    return Panel(variant, cells)


def _members(number: int, members: Sequence[Member]) -> None:
    st.subheader("Members")
    names = list(members[0].setting)
    shown = pd.DataFrame(
        {
            "Run": [member.run_id for member in members],
            "State": [[member.state] for member in members],
            "Progress": [100 * (member.steps_done or 0) / member.steps if member.steps else 0 for member in members],
            "Variant": [member.variant for member in members],
            **{name: [value_words(member.setting.get(name)) for member in members] for name in names},
            "Seed": [member.seed for member in members],
            "Final": [member.final_validation_loss_nats for member in members],
            "Best": [member.best_validation_loss_nats for member in members],
            "at step": [member.best_step for member in members],
            "Ended early": [member.stopped or member.error_code or "" for member in members],
        }
    )
    selection = st.dataframe(
        shown,
        hide_index=True,
        placeholder="–",
        key="members",
        height=rows_height(len(shown), at_most=20),
        on_select="rerun",
        selection_mode=["multi-row", "single-cell"],
        alt="Members of the sweep. Choose rows to compare their runs; click a cell to open its run.",
        column_config={
            "Run": st.column_config.NumberColumn(format="%d", width=60, pinned=True),
            "State": st.column_config.MultiselectColumn(
                width=105, options=[*STATE_COLOURS, DELETED], color=[*STATE_COLOURS.values(), "gray"]
            ),
            "Progress": st.column_config.ProgressColumn(format="%.0f %%", min_value=0, max_value=100, width=100),
            "Final": st.column_config.NumberColumn(format="%.4f", help="validation loss at the last step, nats"),
            "Best": st.column_config.NumberColumn(format="%.4f", help="lowest validation loss at any step, nats"),
            "at step": st.column_config.NumberColumn(format="localized"),
            "Ended early": st.column_config.TextColumn(width=260),
        },
    )["selection"]
    if selection["cells"] and selection["cells"][0][0] < len(members):
        clicked = members[selection["cells"][0][0]].run_id
        if clicked is not None:
            st.switch_page(RUNS, query_params={"runs": str(clicked)})
    rows = [members[row] for row in selection["rows"] if row < len(members)]
    chosen = [member.run_id for member in rows if member.run_id is not None]
    if chosen and st.button(f"Compare {count(len(chosen))} chosen", icon=":material/compare_arrows:", type="primary"):
        st.switch_page(RUNS, query_params={"runs": ",".join(map(str, chosen[:MOST_RUNS]))})
    st.caption("Tick rows to choose runs; click a cell to open its run.")
    sql_and_data(
        "sweep", "members", as_text(queries.MEMBERS, sweep=number), pd.DataFrame([asdict(each) for each in members])
    )
