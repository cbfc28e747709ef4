"""The parts of the entropy-bound page on whole models: entropy against bound, sparsity against rank, σ by layer."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from dashboard import url
from dashboard.charts.head_scatter import Axis, Corner, HeadPoint, ScatterPanel, head_scatter
from dashboard.charts.sigma_factors import PANELS, sigma_factors
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, power_of_ten
from dashboard.head_choice import figure_of_heads
from dashboard.job_names import differences, titles
from dashboard.queries import entropy_bound as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.entropy_bound import HeadBound
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.entropy_bound_metrics import (
    CANNOT_BE_TOLD,
    CORNERS,
    KIND,
    METRICS,
    RANKS,
    SPARSITIES,
    Plane,
    bounds_in_words,
    decimals,
    log10,
)

_OWN, _PRODUCT = "the rows' own scores", "weights and inputs"


def key_figures(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], plane: Plane) -> None:
    """A line per job: entropy, how near the bound, and how many heads there are of each kind of pattern."""
    lines = []
    for job in jobs:
        mine = _of(job, rows)
        kinds = Counter(plane.kind(row) for row in mine)
        lines.append(
            {
                "Job": job.job_id,
                "Heads": count(len(mine)),
                "Median entropy (nats)": decimals(_median(mine, "entropy_nats")),
                "Median tightness": decimals(_median(mine, "tightness")),
                "Least gap (nats)": _least_gap(mine),
                **{
                    name.capitalize(): count(kinds[corner] if kinds.total() > kinds[None] else None)
                    for corner, name in CORNERS.items()
                },
            }
        )
    frame = pd.DataFrame(lines)
    if len(jobs) > 1:
        frame = pd.concat([frame, pd.DataFrame(differences(jobs))], axis="columns")
    st.dataframe(
        frame,
        hide_index=True,
        key="key_figures",
        height=rows_height(len(frame)),
        column_config={"Job": st.column_config.NumberColumn(format="%d", width=55)}
        | {name: st.column_config.TextColumn(alignment="right") for name in list(lines[0])[1:]},
    )
    st.caption(
        "**Tightness**: the σ that a row's entropy needs over the σ it has; 1 at the bound. **Least gap**: entropy "
        "less bound, of the row where it is least. The last four columns count heads by the plane below."
        + (f" –: low rank {CANNOT_BE_TOLD}, see there." if _too_few(jobs, rows, plane) else "")
    )


def _too_few(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], plane: Plane) -> str:
    """Which jobs measured too few rows for the threshold of low rank."""
    parts = []
    for job in jobs:
        numbers = {row.rank_rows for row in _of(job, rows) if row.rank_rows and plane.too_few(row)}
        if numbers:
            most = max(numbers)
            parts.append(
                f"Job {job.job_id}: low rank {CANNOT_BE_TOLD}. Its patterns have {most} "
                f"{'row' if most == 1 else 'rows'}, and the least rank there is, 1, is {1 / most:.3g} of them; low "
                f"rank would be up to {plane.low_rank_below:.3g}. Raise that threshold, or measure more `queries`."
            )
    return " ".join(parts)


def against_bound(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound]) -> None:
    st.subheader("Entropy against its bound")
    source = _OWN
    if any(row.obstacles == 0 for row in rows):
        options = [_OWN, _PRODUCT]
        source = st.segmented_control(
            "Bound from",
            options,
            required=True,
            format_func=lambda name: f"bound from {name}",
            label_visibility="collapsed",
            **url.bind("bound", st.query_params.get("bound"), options),
        )
    column = "log10_product_bound" if source == _PRODUCT else "log10_bound"
    names = titles(jobs)
    panels = [
        ScatterPanel(names[job.job_id], [_bound_point(row, column) for row in _of(job, rows)], {}) for job in jobs
    ]
    figure = head_scatter(
        panels,
        Axis(f"least entropy that {source} allow (nats)", logarithmic=True),
        Axis("measured entropy (nats)", logarithmic=True),
        diagonal="entropy = bound",
        selected=_asked_head(),
    )
    figure_of_heads(
        figure,
        "against_bound",
        "Scatter of heads: measured mean entropy over the mean of its lower bound, both logarithmic.",
    )
    st.caption(
        "Each point is a head, by the means over its rows; the theorem keeps all on or above the dashed line. The "
        "further to the left, the more entropy a head keeps that its scores would let it lose. "
        + " ".join(f"Job {job.job_id}: {bounds_in_words(_of(job, rows))}." for job in jobs)
    )
    _heads_below(jobs, rows, "against-bound", figure)


def _asked_head() -> tuple[int, int] | None:
    layer, head = url.integer("layer"), url.integer("head")
    return None if layer is None or head is None else (layer, head)


def _bound_point(row: HeadBound, column: str) -> HeadPoint:
    bound = getattr(row, column)
    words = [
        f"entropy {decimals(row.entropy_nats)} nats",
        f"bound {power_of_ten(bound)} nats",
        f"tightness {decimals(row.tightness)}",
    ]
    return HeadPoint(row.job_id, row.layer, row.head, bound, log10(row.entropy_nats), "<br>".join(words))


def plane(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], shown: Plane) -> None:
    st.subheader("Sparse, low rank, or both")
    columns = st.columns([2, 2, 1, 1])
    for column, title, name, options in (
        (columns[0], "Sparse by the weight of", "sparsity", SPARSITIES),
        (columns[1], "Low rank by", "rank", RANKS),
    ):
        with column:
            st.selectbox(
                title,
                options,
                format_func=lambda each: METRICS[each].label,
                **url.bind(name, getattr(shown, name), options),
            )
    for column, title, name, value in (
        (columns[2], "Sparse from", "sparse", shown.sparse_above),
        (columns[3], "Low rank up to", "lowrank", shown.low_rank_below),
    ):
        with column:
            st.number_input(
                title, min_value=0.0, max_value=1.0, step=0.05, format="%.3g", **url.bind_number(name, value)
            )
    if too_few := _too_few(jobs, rows, shown):
        st.warning(too_few, icon=":material/warning:")
    names = titles(jobs)
    panels = []
    for job in jobs:
        mine = _of(job, rows)
        kinds = Counter(shown.kind(row) for row in mine)
        corners: dict[Corner, str] = {corner: f"{name}: {kinds[corner]}" for corner, name in CORNERS.items()}
        if mine and all(shown.too_few(row) for row in mine):
            corners = {("left", "low"): f"low rank {CANNOT_BE_TOLD}: {mine[0].rank_rows} rows"}
        panels.append(ScatterPanel(names[job.job_id], [_plane_point(row, shown) for row in mine], corners))
    figure = head_scatter(
        panels,
        Axis(f"mean weight of {METRICS[shown.sparsity].label}", False, shown.sparse_above, percent=True),
        Axis(f"{METRICS[shown.rank].label} / rows", True, log10(shown.low_rank_below)),
        selected=_asked_head(),
    )
    figure_of_heads(
        figure,
        "plane",
        "Scatter of heads: rank of the pattern over the weight of the largest entries.",
    )
    st.caption(
        "**Sparse, not low rank** (upper right): each query looks at a few keys of its own, as in a previous-token "
        "head. **Sparse and low rank** (lower right): all queries look at the same few keys, as at a sink, and the "
        "head gives them nearly the same output. Entropy does not tell the two apart. Qi et al. 2025 (*Taming "
        "Transformer without Using Learning Rate Warmup*) report that training goes on in the first state and crashes "
        "in the second, against the criterion of Zhai et al. 2023; it is one group's observation. Ranks are shares of "
        "the rows they are taken of; compare jobs of like queries and lengths."
    )
    _heads_below(jobs, rows, "plane", figure)


def _plane_point(row: HeadBound, shown: Plane) -> HeadPoint:
    mass, rank = getattr(row, shown.sparsity), getattr(row, shown.rank)
    part = None if rank is None or not row.rank_rows else rank / row.rank_rows
    kind = shown.in_words(row)
    words = [
        f"{METRICS[shown.sparsity].label} {decimals(mass)}",
        f"{METRICS[shown.rank].label} {decimals(rank)} of {row.rank_rows}",
        *([kind] if kind else []),
    ]
    return HeadPoint(row.job_id, row.layer, row.head, mass, log10(part), "<br>".join(words))


def factors(jobs: Sequence[FinishedJob]) -> None:
    st.subheader("Both factors of σ")
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=list(PANELS))
    figure = sigma_factors(found, titles(jobs))
    st.plotly_chart(
        figure,
        key="factors",
        config=CHART_CONFIG,
        alt="Spectral norm of weights, of inputs, and measured norm of scores by layer.",
    )
    st.caption(
        "Where nothing comes in between, σ is at most scaling × weights × inputs (Zhai et al. 2023). The remedies of "
        "that account, normalized queries and keys or weights divided by their spectral norm, say nothing of what "
        "controls the input term: here are both factors, and the σ that scores really have. Lines: median over heads "
        "and sequences; bands: from least to largest."
    )
    sql_and_data(
        KIND,
        "factors",
        as_text(summary_queries.LAYER_SUMMARIES, jobs=ids, metrics=list(PANELS)),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def _heads_below(jobs: Sequence[FinishedJob], rows: Sequence[HeadBound], name: str, figure: go.Figure) -> None:
    ids = [job.job_id for job in jobs]
    sql_and_data(KIND, name, as_text(queries.HEADS, jobs=ids), pd.DataFrame([asdict(row) for row in rows]), figure)


def _of(job: FinishedJob, rows: Sequence[HeadBound]) -> list[HeadBound]:
    return [row for row in rows if row.job_id == job.job_id]


def _median(rows: Sequence[HeadBound], name: str) -> float | None:
    known = [value for row in rows if (value := getattr(row, name)) is not None]
    return statistics.median(known) if known else None


def _least_gap(rows: Sequence[HeadBound]) -> str:
    known = [row.gap_min_nats for row in rows if row.gap_min_nats is not None]
    return f"{min(known):.2g}" if known else NOTHING
