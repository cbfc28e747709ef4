"""The parts of the Jacobian page that compare a few heads: Figure 3 and Table 2."""

import re
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st

from dashboard.charts.spectra import Curve, spectra
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, percent
from dashboard.queries import jacobian_spectrum as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.jacobian_spectrum import HeadSpectrum, Site
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.jacobian_spectrum_heads import KIND, number, site_name

# Tables 1 and 2 and Figure 3 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop): Qwen2.5-1.5B base,
# 56 FineWeb sequences of 1,024 tokens, queries 32 to 1,023. Its bounds, 99 % and 19, are for all three heads.
ARTICLE_MODEL = re.compile(r"Qwen2\.5-1\.5B(?![\w-])")
ARTICLE = {
    (2, 0): ("10.94", "2.74", "20", "45", NOTHING),
    (14, 0): ("3.23", "1.19", "7", "14", "75.0 %"),
    (26, 0): ("13.28", "1.78", "26", "70", NOTHING),
}
ARTICLE_QUERIES, ARTICLE_SHARE, ARTICLE_LARGEST = "55,552", "≥ 99 %", "≤ 19"
STATISTICS = (
    "Effective rank using σ², median",
    "Effective rank using normalized σ, median",
    "Participation ratio, median",
    "Modes with σ/σ_max > 10⁻², median",
    "Modes with σ/σ_max > 10⁻³, median",
    "Top attention weight, median",
    "Queries with effective rank (σ²) below 10",
    "Largest effective rank (σ²)",
    "Queries",
)


def figure_3(jobs: Sequence[FinishedJob], heads: Sequence[HeadSpectrum], sites: Sequence[Site]) -> None:
    """Distributions of effective ranks beside mean relative spectra, for every chosen head of every job."""
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        modes = queries.modes(conn, ids, sites)
        ranks = {
            (found.job_id, site): found
            for site in sites
            for found in summary_queries.summaries(
                conn, summary_queries.ONE_HEAD, jobs=ids, layer=site[0], head=site[1], metrics=["effective_rank"]
            )
        }
    curves = [
        Curve(
            _name(job, site, several=len(jobs) > 1),
            colour,
            dash,
            ranks.get((job.job_id, site)),
            [mode for mode in modes if (mode.job_id, mode.layer, mode.head) == (job.job_id, *site)],
        )
        for dash, job in enumerate(jobs)
        for colour, site in enumerate(sites)
        if any((row.job_id, row.site) == (job.job_id, site) for row in heads)
    ]
    figure = spectra(curves)
    st.plotly_chart(
        figure,
        key="spectra",
        config=CHART_CONFIG,
        alt="Left: histograms of effective rank over queries. Right: mean relative singular values on a log axis.",
    )
    st.caption(
        "**What to look at:** how far to the left the ranks lie, and how steeply the spectrum falls. Of as many "
        "directions as a head has, credit passes through few. **Right:** the line is the mean over all queries of all "
        "sequences; the band reaches from the 5 % to the 95 % quantile over the queries of a sequence, averaged over "
        "sequences. Rows with J = 0 (one key) are left out. Mode r = 1 is the largest singular value; the column "
        "`mode` of the SQL and the CSV counts from 0."
    )
    sql_and_data(
        KIND,
        "spectra",
        as_text(queries.MODES, **queries.mode_values(ids, sites)),
        pd.DataFrame([asdict(mode) for mode in modes]),
        figure,
    )


def table_2(jobs: Sequence[FinishedJob], heads: Sequence[HeadSpectrum], sites: Sequence[Site]) -> None:
    """Table 2 with a column per head and job; beside them the article's, where a job is of the article's model."""
    st.subheader("Table 2")
    found = {(row.job_id, row.site): row for row in heads}
    columns = {
        _name(job, site, several=len(jobs) > 1): _column(found[job.job_id, site])
        for site in sites
        for job in jobs
        if (job.job_id, site) in found
    }
    of_article = any(ARTICLE_MODEL.search(job.model) for job in jobs)
    if of_article:
        columns |= {f"Article: {site_name(site)}": _article_column(site) for site in ARTICLE}
    st.dataframe(
        pd.DataFrame({"Statistic": STATISTICS} | columns),
        hide_index=True,
        key="table_2",
        height=rows_height(len(STATISTICS), at_most=len(STATISTICS)),
        column_config={"Statistic": st.column_config.TextColumn(width=350, pinned=True)}
        | {name: st.column_config.TextColumn(alignment="right") for name in columns},
    )
    st.caption(
        "Medians are over the head's queries, the two counts of modes as well."
        + (
            " The article's columns are its own figures for Qwen2.5-1.5B on FineWeb; its 99 % and 19 bound all three."
            if of_article
            else " In three heads of Qwen2.5-1.5B the article has at least 99 % of the queries below 10, none above 19."
        )
    )
    ids = [job.job_id for job in jobs]
    rows = pd.DataFrame([asdict(row) for row in heads if row.site in sites])
    sql_and_data(KIND, "table-2", as_text(queries.HEADS, jobs=ids), rows)


def _name(job: FinishedJob, site: Site, *, several: bool) -> str:
    return f"job {job.job_id}: {site_name(site)}" if several else site_name(site).capitalize()


def _column(row: HeadSpectrum) -> list[str]:
    return [
        number(row.effective_rank),
        number(row.effective_rank_sigma),
        number(row.participation_ratio),
        NOTHING if row.modes_above_1e_2 is None else f"{row.modes_above_1e_2:g}",
        NOTHING if row.modes_above_1e_3 is None else f"{row.modes_above_1e_3:g}",
        percent(row.top_attention),
        percent(row.share_below_10),
        number(row.largest_effective_rank),
        count(row.queries),
    ]


def _article_column(site: Site) -> list[str]:
    sigma, participation, above_2, above_3, top = ARTICLE[site]
    return [
        NOTHING,
        sigma,
        participation,
        above_2,
        above_3,
        top,
        ARTICLE_SHARE,
        ARTICLE_LARGEST,
        ARTICLE_QUERIES,
    ]
