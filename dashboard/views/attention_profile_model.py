"""The parts of the attention-profile page that show whole models: Table 5 and distributions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import url
from dashboard.charts.metric_histograms import metric_histograms
from dashboard.connection import reading
from dashboard.downloads import CHART_CONFIG, sql_and_data
from dashboard.formats import NOTHING, count, percent
from dashboard.job_names import differences, titles
from dashboard.queries import attention_profile as queries
from dashboard.queries import summaries as summary_queries
from dashboard.queries.attention_profile import Table5
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.text import as_text
from dashboard.tables import rows_height
from dashboard.views.attention_profile_metrics import KIND, METRICS, decimals
from services.contracts.probes.common import QueryRange

# Table 5 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop): 12 layers of 6 heads, 124M parameters, FineWeb
ARTICLE_LOCAL, ARTICLE_ENTROPY_NATS = 0.7, 4.5
ARTICLE = {
    "Article: control": Table5(0, 72, 3.75, 0.238, 0.383, 8, 7),
    "Article: NATQ": Table5(0, 72, 4.69, 0.149, 0.209, 1, 48),
}
MOST_NATS = 12.0
STATISTICS = (
    "Mean entropy (nats)",
    "Mean top-key attention",
    "Mean within eight tokens",
    "Local heads",
    "Spread-out heads",
    "Keys in a row",
)


def thresholds(jobs: Sequence[FinishedJob]) -> tuple[float, float]:
    """Of local mass and entropy in nats: from the address, else those that the first job was given."""
    given = jobs[0].parameters
    local = url.number("local", given.get("local_threshold", ARTICLE_LOCAL), 0.0, 1.0)
    entropy = url.number("entropy", given.get("entropy_threshold_nats", ARTICLE_ENTROPY_NATS), 0.0, MOST_NATS)
    return local, min(entropy, MOST_NATS)


def threshold_inputs(jobs: Sequence[FinishedJob], left: DeltaGenerator, right: DeltaGenerator) -> tuple[float, float]:
    """Have both moved, in two columns; returns them."""
    local, entropy = thresholds(jobs)
    with left:
        st.number_input(
            "Local: mass on eight tokens above",
            min_value=0.0,
            max_value=1.0,
            step=0.05,
            **url.bind_number("local", local),
        )
    with right:
        st.number_input(
            "Spread out: entropy above (nats)",
            min_value=0.0,
            max_value=MOST_NATS,
            step=0.25,
            **url.bind_number("entropy", entropy),
        )
    return local, entropy


def table_5(jobs: Sequence[FinishedJob]) -> None:
    """Table 5 with a row per job above those of the article; the thresholds can be moved."""
    st.subheader("Table 5")
    left, right, _ = st.columns([1, 1, 2])
    local, entropy = threshold_inputs(jobs, left, right)
    ids = [job.job_id for job in jobs]
    with reading() as conn:
        found = {row.job_id: row for row in queries.table_5(conn, ids, local=local, entropy=entropy)}
    frame = _table_5_frame(jobs, found, local, entropy)
    helps = {
        "Local heads": f"heads with a mean mass within eight tokens above {local:g}",
        "Spread-out heads": f"heads with a mean entropy above {entropy:g} nats",
        "Keys in a row": "that the first and the last measured query see",
    }
    st.dataframe(
        frame,
        hide_index=True,
        key="table_5",
        height=rows_height(len(frame), at_most=len(frame)),
        column_config={"Job": st.column_config.TextColumn(width=130, pinned=True)}
        | {name: st.column_config.TextColumn(alignment="right", help=helps.get(name)) for name in STATISTICS},
    )
    st.caption(
        "Means over heads; a head counts by its mean over queries. **Entropy grows with the row:** n keys allow up to "
        "log n nats, and a query sees the keys up to its own, fewer under a sliding window. Compare entropies, and the "
        "heads above a threshold, where the rows have the same keys; the article does not tell the lengths of its own. "
        "Its model has 12 layers of 6 heads, trained on FineWeb, and its counts stand at its own thresholds only, 0.7 "
        "and 4.5 nats. NATQ spreads attention: more entropy, less on the top key and on the nearest tokens."
    )
    sql_and_data(
        KIND,
        "table-5",
        as_text(queries.TABLE_5, jobs=ids, local=local, entropy=entropy),
        pd.DataFrame(
            [asdict(found[job]) | {"local_threshold": local, "entropy_threshold_nats": entropy} for job in found]
        ),
    )


def _table_5_frame(
    jobs: Sequence[FinishedJob], found: Mapping[int, Table5], local: float, entropy: float
) -> pd.DataFrame:
    """A row for each job, with what not all jobs have in common, and one for each column of the article's table."""
    there = [job for job in jobs if job.job_id in found]
    rows = [[f"Job {job.job_id}", *_statistics(found[job.job_id], True, True), keys_in_a_row(job)] for job in there]
    same = (local == ARTICLE_LOCAL, entropy == ARTICLE_ENTROPY_NATS)
    rows += [[name, *_statistics(table, *same), NOTHING] for name, table in ARTICLE.items()]
    frame = pd.DataFrame(rows, columns=["Job", *STATISTICS])
    return pd.concat([frame, pd.DataFrame(differences(there))], axis="columns").fillna(NOTHING)


def _statistics(table: Table5, local: bool, spread_out: bool) -> list[str]:
    """One row as text; a count is left out where its threshold is not the row's own."""
    return [
        decimals(table.mean_entropy_nats, 2),
        decimals(table.mean_top_weight),
        decimals(table.mean_local_mass),
        _of_heads(table.heads_local, table.heads) if local else NOTHING,
        _of_heads(table.heads_spread_out, table.heads) if spread_out else NOTHING,
    ]


def _of_heads(number: int, heads: int) -> str:
    return f"{count(number)} of {count(heads)} ({percent(number / heads)})"


def keys_in_a_row(job: FinishedJob) -> str:
    """How many keys the first and the last measured query see without a sliding window."""
    positions = QueryRange(**job.parameters["queries"]).positions(job.parameters["length"])
    return f"{count(positions[0] + 1)} to {count(positions[-1] + 1)}"


def distribution(jobs: Sequence[FinishedJob], metric_name: str) -> None:
    """The metric over all queries (or random sequences) of each job, all heads together."""
    metric, ids = METRICS[metric_name], [job.job_id for job in jobs]
    with reading() as conn:
        found = summary_queries.summaries(conn, summary_queries.JOB_SUMMARIES, jobs=ids, metrics=[metric_name])
    if not found:
        st.info("No summary of this metric is stored.", icon=":material/search_off:")
        return
    figure = metric_histograms(
        found, titles(jobs), f"{metric.label}, all heads together", marks=marks(jobs, metric_name)
    )
    st.plotly_chart(
        figure,
        key="metric_distribution",
        config=CHART_CONFIG,
        alt=f"Histogram of {metric.label} over the {metric.rows} of all heads; the bins are in the CSV below.",
    )
    st.caption(f"**{metric.label}**: {metric.meaning}. Height: share of all {metric.rows} and heads in each bin.")
    sql_and_data(
        KIND,
        "distribution",
        as_text(summary_queries.JOB_SUMMARIES, jobs=ids, metrics=[metric_name]),
        pd.DataFrame([asdict(summary) for summary in found]),
        figure,
    )


def marks(jobs: Sequence[FinishedJob], metric_name: str) -> Mapping[str, float]:
    """The threshold of Table 5, where the metric has one."""
    local, entropy = thresholds(jobs)
    return {"entropy_nats": {f"{entropy:g} nats": entropy}, "local_mass": {f"{local:g}": local}}.get(metric_name, {})
