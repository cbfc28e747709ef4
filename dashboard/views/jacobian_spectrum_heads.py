"""The part of the Jacobian page that maps all heads, and the choice of those that the figures show."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard import url
from dashboard.charts.head_map import Cell, HeadMap, Statistic, head_map
from dashboard.charts.look import ADVANTAGE_SCALE, ATTENTION_SCALE
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, percent
from dashboard.job_names import titles
from dashboard.queries import jacobian_spectrum as queries
from dashboard.queries.jacobian_spectrum import HeadSpectrum, Site
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text

KIND = "jacobian_spectrum"
MOST_SITES = 6
ARTICLE_DEPTHS = (2 / 28, 14 / 28, 26 / 28)  # layers 2, 14 and 26 of the article's 28, head 0 in each


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


MAPS = {
    statistic.name: statistic
    for statistic in (
        Statistic(
            "effective_rank", "median effective rank", ATTENTION_SCALE, number, logarithmic=False, tick_format=".3~g"
        ),
        Statistic(
            "participation_ratio",
            "median participation ratio",
            ATTENTION_SCALE,
            number,
            logarithmic=False,
            tick_format=".3~g",
        ),
        Statistic("share_below_10", "share with effective rank below 10", ADVANTAGE_SCALE, percent, logarithmic=False),
        Statistic("top_attention", "median top attention", ADVANTAGE_SCALE, percent, logarithmic=False),
    )
}


def site_name(site: Site) -> str:
    return f"layer {site[0]}, head {site[1]}"


def chosen_sites(heads: Sequence[HeadSpectrum]) -> list[Site]:
    """The heads in ``?sites=``, as layer.head; where none is named, head 0 early, midway and late as in the article."""
    known = sorted({row.site for row in heads})
    options = [_text(site) for site in known]
    named = [part for part in st.query_params.get("sites", "").split(",") if part in options]
    if "sites" not in st.query_params:
        named = [_text(site) for site in _first_sites(known)]
    st.multiselect(
        "Heads",
        options,
        format_func=lambda text: site_name(_site(text)),
        max_selections=MOST_SITES,
        placeholder="choose heads to compare",
        **url.bind("sites", named[:MOST_SITES], options),
    )
    return [_site(text) for text in named[:MOST_SITES]]


def _first_sites(known: Sequence[Site]) -> list[Site]:
    if len(known) <= len(ARTICLE_DEPTHS):
        return list(known)
    layers = 1 + max(layer for layer, _ in known)
    wished = [(round(depth * layers), 0) for depth in ARTICLE_DEPTHS]
    return [site for site in dict.fromkeys(wished) if site in known] or list(known[: len(ARTICLE_DEPTHS)])


def _text(site: Site) -> str:
    return f"{site[0]}.{site[1]}"


def _site(text: str) -> Site:
    layer, head = text.split(".")
    return int(layer), int(head)


def toggled(sites: Sequence[Site], site: Site) -> list[Site]:
    """The sites without this one, or with it; the oldest makes room where there would be too many."""
    if site in sites:
        return [other for other in sites if other != site]
    return [*sites, site][-MOST_SITES:]


def by_head(
    jobs: Sequence[FinishedJob], heads: Sequence[HeadSpectrum], sites: Sequence[Site], statistic_name: str
) -> None:
    """A map per job; a click adds the head to the figures or takes it away."""
    statistic, names = MAPS[statistic_name], titles(jobs)
    maps = [
        HeadMap(
            names[job.job_id],
            [
                Cell(row.job_id, row.layer, row.head, getattr(row, statistic_name))
                for row in heads
                if row.job_id == job.job_id
            ],
        )
        for job in jobs
    ]
    figure = head_map(maps, statistic, selected=sites[-1] if sites else None)

    def clicked() -> None:
        points = st.session_state["head_map"]["selection"]["points"]
        if points and points[0].get("customdata"):
            _, layer, head = points[0]["customdata"]
            url.write("sites", [_text(site) for site in toggled(sites, (int(layer), int(head)))] or "none")

    st.plotly_chart(
        figure,
        key="head_map",
        config=CHART_CONFIG,
        on_select=clicked,
        selection_mode="points",
        alt=f"Heat map of {statistic.label} by layer and head; the same numbers are in the CSV below.",
    )
    st.caption(
        "All jobs share one colour scale. Click a cell to add that head to the figures above, or to take it away; "
        "framed: the one added last. Heads that were not measured are left blank."
    )
    sql_and_data(
        KIND,
        "heads",
        as_text(queries.HEADS, jobs=[job.job_id for job in jobs]),
        pd.DataFrame([asdict(row) for row in heads]),
        figure,
    )
