"""The parts of the ratchet page that show whole models: key figures, heads, attention bands, layers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ADVANTAGE, ATTENTION, ATTENTION_SCALE, DIFFERENCE_SCALE, NEUTRAL
from dashboard.charts.ratchet_bands import LABELS, Band, ratchet_bands
from dashboard.charts.share_layers import Line, SharePanel, share_layers
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, percent
from dashboard.head_choice import chosen_head, figure_of_heads
from dashboard.job_names import differences, titles
from dashboard.queries import ratchet as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.ratchet import Scope
from dashboard.queries.text import as_text
from dashboard.summaries import Summary
from dashboard.tables import rows_height

KIND = "ratchet"
BOTH = "#9a5bc4"  # lead in advantage and odds together


@dataclass(frozen=True)
class ShareStatistic:
    """A column of HEAD_STATISTICS that the map can show."""

    column: str
    short: str
    label: str
    centred: bool = True  # on one half

    def of_map(self) -> Statistic:
        scale = DIFFERENCE_SCALE if self.centred else ATTENTION_SCALE
        centre = 0.5 if self.centred else None
        return Statistic(self.column, self.label, scale, percent, centre=centre, logarithmic=False)


STATISTICS = {
    statistic.column: statistic
    for statistic in (
        ShareStatistic("lead_grows", "lead in advantage", "share: lead grows"),
        ShareStatistic("lead_grows_elsewhere", "the same, top key not the first", "share: lead grows"),
        ShareStatistic("odds_grow", "odds", "share: odds grow"),
        ShareStatistic("ratchets", "both", "share: both grow", centred=False),
        ShareStatistic("top_is_first", "top key is the first", "share: top key is key 0", centred=False),
        ShareStatistic("top_weight", "weight of the top key", "mean weight", centred=False),
    )
}
SHARES = ["lead_grows", "lead_grows_elsewhere", "gain_top_positive", "odds_grow", "odds_rest_grow", "ratchets"]
KEY_METRICS = [*SHARES, "step_top_positive", "top_is_first"]
LINES = {
    "lead_grows": Line("lead in advantage grows", ADVANTAGE),
    "lead_grows_elsewhere": Line("the same, top key not the first", ADVANTAGE, "dot"),
    "odds_grow": Line("odds grow", ATTENTION),
    "ratchets": Line("both", BOTH),
    "top_is_first": Line("top key is the first", NEUTRAL, "dot"),
}
_FIGURES = {
    "Lead grows": ("lead_grows", "share of queries whose top key gains more advantage than the runner-up"),
    "… not on key 0": ("lead_grows_elsewhere", "the same among queries whose top key is not position 0"),
    "Gains on rest": ("gain_top_positive", "share of queries whose top key gains advantage: on the row's mean"),
    "Odds grow": ("odds_grow", "share of queries whose top key's attention odds to the runner-up grow"),
    "Both": ("ratchets", "lead in advantage and odds grow together"),
    "Top key is 0": ("top_is_first", "share of queries whose top key is position 0, an attention sink mostly"),
}


def whole_model(jobs: Sequence[FinishedJob]) -> None:
    """Key figures of one job, or a table of several."""
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=KEY_METRICS)
    by_job = {job_id: {s.metric: s for s in found if s.job_id == job_id} for job_id in ids}
    figures = [_figures(by_job[job_id]) for job_id in ids]
    if len(jobs) == 1:
        for column, (name, value) in zip(st.columns(len(figures[0])), figures[0].items(), strict=True):
            column.metric(name, value, help=_FIGURES[name][1] if name in _FIGURES else None)
    else:
        frame = pd.DataFrame(figures)
        st.dataframe(
            pd.concat([pd.DataFrame({"Job": ids}), frame, pd.DataFrame(differences(jobs))], axis="columns"),
            hide_index=True,
            key="key_figures",
            column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
            | {name: st.column_config.TextColumn(alignment="right") for name in frame.columns},
        )
    st.caption(_expected(by_job[ids[0]] if len(jobs) == 1 else {}) + _undefined(found))
    sql_and_data(
        KIND,
        "model",
        as_text(summary_queries.JOB_SUMMARIES, jobs=ids, metrics=KEY_METRICS),
        pd.DataFrame([asdict(summary) for summary in found]),
    )


def _figures(summaries: Mapping[str, Summary]) -> dict[str, str]:
    shares = {
        name: percent(summaries[metric].mean if metric in summaries else None) for name, (metric, _) in _FIGURES.items()
    }
    some = summaries.get("lead_grows")
    return shares | {"Rows": count(some.n if some else None)}


def _expected(summaries: Mapping[str, Summary]) -> str:
    lead, odds = (summaries[name].mean if name in summaries else None for name in ("lead_grows", "odds_grow"))
    told = "One half is what a coin would give; in a model that has learned, the signs of advantages nearly balance."
    if lead is None or odds is None:
        return told
    return f"{told} If the two had nothing to do with each other, both would grow in {percent(lead * odds)}."


def _undefined(summaries: Sequence[Summary]) -> str:
    undefined = sum(s.n_undefined for s in summaries if s.metric == "lead_grows")
    if not undefined:
        return ""
    some = "query" if undefined == 1 else "queries"
    return f" Left out: {count(undefined)} {some} that no loss depends on, or with a single key."


def by_head(jobs: Sequence[FinishedJob], name: str) -> tuple[int, int]:
    """The heat maps; returns the chosen (layer, head): from the address, else the one with the largest value."""
    statistic = STATISTICS[name]
    ids, names = [job.job_id for job in jobs], titles(jobs)
    with reading() as conn:
        rows = queries.head_shares(conn, ids)
    maps = [
        HeadMap(names[job], [Cell(r.job_id, r.layer, r.head, getattr(r, name)) for r in rows if r.job_id == job])
        for job in ids
    ]
    chosen = chosen_head([cell for each in maps for cell in each.cells])
    figure = head_map(maps, statistic.of_map(), selected=chosen)
    figure_of_heads(
        figure, "head_map", f"Heat map of {statistic.label} by layer and head; the same numbers are in the CSV below."
    )
    colours = " Blue: it grows in more than half of the queries; orange: in fewer." if statistic.centred else ""
    st.caption(f"All jobs share one colour scale. Click a cell to see that head below; hover for its value.{colours}")
    sql_and_data(
        KIND, "heads", as_text(queries.HEAD_STATISTICS, jobs=ids), pd.DataFrame([asdict(r) for r in rows]), figure
    )
    return chosen


def by_band(jobs: Sequence[FinishedJob], chosen: tuple[int, int]) -> None:
    """Sources by attention weight, of the model, the chosen layer or the chosen head."""
    layer, head = chosen
    st.subheader("By attention weight of the source")
    scopes = list(get_args(Scope))
    labels = {"model": "whole model", "layer": f"layer {layer}", "head": f"layer {layer}, head {head}"}
    st.segmented_control(
        "Scope",
        scopes,
        required=True,
        format_func=labels.__getitem__,
        label_visibility="collapsed",
        **url.bind("scope", st.query_params.get("scope"), scopes),
    )
    scope: Scope = st.session_state["scope_choice"] or scopes[0]
    ids, names = [job.job_id for job in jobs], titles(jobs)
    with reading() as conn:
        rows = queries.bands(conn, ids, scope, layer, head)
    if not rows:
        st.info("None of the chosen jobs has that head.", icon=":material/search_off:")
        return
    figure = ratchet_bands([Band(**asdict(row)) for row in rows], names)
    st.plotly_chart(
        figure,
        key="bands",
        config=CHART_CONFIG,
        alt="Shares of sources that gain advantage and score by attention weight; the same numbers are in the table.",
    )
    st.caption(
        "All sources of all measured queries. Advantage (full line): the step on the value matrix raises it; score "
        "(dotted): the step on the scores raises it. A full line that rises to the right is the ratchet: sources with "
        "more attention gain more. The gain is in units of η‖δ‖²X²; for orthogonal inputs it is a − Σa²."
    )
    table = pd.DataFrame(
        [
            ({"Job": row.job_id} if len(jobs) > 1 else {})
            | {
                "Weight": LABELS[row.band],
                "Sources": row.sources,
                "Gain advantage": percent(row.gain_positive),
                "Gain score": percent(row.step_positive),
                "Mean gain": NOTHING if row.gain is None else f"{row.gain:+.4f}",
            }
            for row in rows
        ]
    )
    st.dataframe(
        table,
        hide_index=True,
        key="band_table",
        height=rows_height(len(table)),
        column_config={"Sources": st.column_config.NumberColumn(format="localized")}
        | dict.fromkeys(("Gain advantage", "Gain score", "Mean gain"), st.column_config.TextColumn(alignment="right")),
    )
    values = {"jobs": ids, "layer": layer, "head": head}
    sql_and_data(
        KIND,
        "bands",
        as_text(queries.bands_sql(scope), **values),
        pd.DataFrame([asdict(row) for row in rows]),
        figure,
    )


def by_layer(jobs: Sequence[FinishedJob]) -> None:
    """Shares layer by layer."""
    st.subheader("By layer")
    ids, names, metrics = [job.job_id for job in jobs], titles(jobs), list(LINES)
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=metrics)
    panels = [SharePanel(names[job], [s for s in found if s.job_id == job]) for job in ids]
    figure = share_layers(panels, LINES)
    st.plotly_chart(
        figure,
        key="layers",
        config=CHART_CONFIG,
        alt="Shares of queries by layer whose top key gains lead, odds, or both; the numbers are in the CSV below.",
    )
    st.caption("Shares over the layer's heads and queries. Dashed: one half.")
    sql_and_data(
        KIND,
        "layers",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=metrics),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )
