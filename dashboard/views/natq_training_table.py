"""Table 5 out of attention_profile jobs of the last checkpoints of runs: means over seeds, beside the article's."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from dashboard.connection import reading
from dashboard.downloads import sql_and_data
from dashboard.formats import NOTHING, signed_decimals
from dashboard.job_names import differences as job_differences
from dashboard.pages import RESULTS
from dashboard.queries import attention_profile as profile_queries
from dashboard.queries import jobs as job_queries
from dashboard.queries import run_jobs
from dashboard.queries.attention_profile import Table5
from dashboard.queries.jobs import FinishedJob
from dashboard.queries.run_jobs import EndOfRun
from dashboard.queries.text import as_text
from dashboard.run_comparison import compared, reference_of
from dashboard.run_names import Group
from dashboard.sweep_words import with_spread
from dashboard.tables import rows_height
from dashboard.views.attention_profile_model import ARTICLE, ARTICLE_ENTROPY_NATS, threshold_inputs

KIND = "attention_profile"
ARTICLE_KEYS = 1024  # context of its model; the article does not tell the lengths it measured


@dataclass(frozen=True)
class Statistic:
    """A row of Table 5; ``article`` says whether the article's values hold at the chosen thresholds."""

    name: str
    value: Callable[[Table5], float | None]
    digits: int
    article: bool = True


def table_5(alike: Sequence[Group]) -> None:
    st.subheader("Table 5: attention at the ends of the runs")
    numbers = [number for group in alike for number in group.numbers]
    with reading() as conn:
        ends = {end.run_id: end for end in run_jobs.at_the_end(conn, numbers, KIND)}
        finished = {job.job_id: job for job in job_queries.finished_jobs(conn, KIND)}
    measured = {run: finished[end.job_id] for run, end in ends.items() if end.job_id in finished}
    if not measured:
        st.info("No attention profile of the last checkpoint of these runs yet.", icon=":material/rocket_launch:")
        _command(alike, [end for end in ends.values() if end.run_id not in measured])
        return
    jobs = list(measured.values())
    local, entropy = _thresholds(jobs)
    with reading() as conn:
        found = {
            row.job_id: row
            for row in profile_queries.table_5(conn, [job.job_id for job in jobs], local=local, entropy=entropy)
        }
    tables = {run: found[job.job_id] for run, job in measured.items() if job.job_id in found}
    shown = _frame(alike, tables, _statistics(local, entropy))
    st.dataframe(
        shown,
        hide_index=True,
        key="table_5",
        height=rows_height(len(shown), at_most=len(shown)),
        column_config={"Statistic": st.column_config.TextColumn(width=300, pinned=True)}
        | {name: st.column_config.TextColumn(alignment="right") for name in shown.columns[1:]},
    )
    _notes(alike, tables, jobs, numbers)
    _command(alike, [end for end in ends.values() if end.run_id not in measured])
    data = pd.DataFrame(
        [
            {"run_id": run, "step": ends[run].step, "checkpoint_id": ends[run].checkpoint_id, **vars(table)}
            for run, table in tables.items()
        ]
    )
    statement = as_text(profile_queries.TABLE_5, jobs=[job.job_id for job in jobs], local=local, entropy=entropy)
    sql_and_data("natq_training", "table-5", statement, data)
    joined = ",".join(str(job.job_id) for job in jobs[:6])
    st.page_link(
        RESULTS[KIND], label="Heads and distributions", icon=":material/visibility:", query_params={"jobs": joined}
    )


def _thresholds(jobs: Sequence[FinishedJob]) -> tuple[float, float]:
    left, right, words = st.columns([1, 1, 2], vertical_alignment="bottom")
    local, entropy = threshold_inputs(jobs, left, right)
    keys = max(int(job.parameters["length"]) for job in jobs)
    with words:
        st.caption(
            f"A row of n keys has at most log n nats. {ARTICLE_ENTROPY_NATS:g} nats are "
            f"{100 * ARTICLE_ENTROPY_NATS / math.log(ARTICLE_KEYS):.0f} % of that at the article's context of "
            f"{ARTICLE_KEYS:,}; the same share of {keys:,} keys is {fitting_entropy(keys):.2f} nats."
        )
    return local, entropy


def fitting_entropy(keys: int) -> float:
    """Threshold of entropy, in nats, that is to log ``keys`` as the article's is to the log of its context."""
    return ARTICLE_ENTROPY_NATS * math.log(max(keys, 2)) / math.log(ARTICLE_KEYS)


def _statistics(local: float, entropy: float) -> list[Statistic]:
    return [
        Statistic("Mean attention entropy (nats)", lambda table: table.mean_entropy_nats, 3),
        Statistic("Mean top-key attention", lambda table: table.mean_top_weight, 3),
        Statistic("Mean attention within eight tokens", lambda table: table.mean_local_mass, 3),
        Statistic(f"Heads with local mass above {local:g}", lambda table: table.heads_local, 1, local == 0.7),
        Statistic(
            f"Heads with entropy above {entropy:g} nats",
            lambda table: table.heads_spread_out,
            1,
            entropy == ARTICLE_ENTROPY_NATS,
        ),
    ]


def _frame(alike: Sequence[Group], tables: Mapping[int, Table5], statistics: Sequence[Statistic]) -> pd.DataFrame:
    """The article's table with a column for each group, differences from the reference, and the article's values."""
    reference = reference_of(alike).label
    rows = []
    for statistic in statistics:
        values = {run: statistic.value(table) for run, table in tables.items()}
        _, found = compared(alike, values)
        row = {"Statistic": statistic.name}
        for group in alike:
            known = [value for run in group.numbers if (value := values.get(run)) is not None]
            row[group.label] = with_spread(known, statistic.digits)
        for label, difference in found.items():
            told = f"{signed_decimals(difference.difference_nats, statistic.digits)}, {difference.verdict}"
            row["Difference" if len(alike) == 2 else f"{label} − {reference}"] = told
        for name, table in ARTICLE.items():
            value = statistic.value(table)
            row[f"{name}, 124M"] = NOTHING if value is None or not statistic.article else f"{value:g}"
        rows.append(row)
    return pd.DataFrame(rows).fillna(NOTHING)


def _notes(
    alike: Sequence[Group], tables: Mapping[int, Table5], jobs: Sequence[FinishedJob], numbers: Sequence[int]
) -> None:
    heads = sorted({table.heads for table in tables.values()})
    st.caption(
        f"Means ± standard deviation over seeds, of {len(tables)} of {len(numbers)} runs; "
        f"{', '.join(map(str, heads))} heads each, the article's 72. A head counts by its mean over queries. "
        "*within noise*: chance alone would reach the difference in one of twenty cases or more (Student's t, the "
        "standard deviation between seeds pooled over the groups)."
    )
    apart = [name for name in job_differences(jobs) if name not in ("Label", "Model", "Model's contents", "Device")]
    if apart:
        st.warning(
            f"These profiles were not measured alike: they differ in {', '.join(apart).lower()}. Compare with care.",
            icon=":material/warning:",
        )


def _command(alike: Sequence[Group], missing: Sequence[EndOfRun]) -> None:
    """One suite over the last checkpoints without a profile, with the data and the length they were trained on."""
    if not missing:
        return
    run = alike[0].runs[0]
    length = run.length or 1024
    settings = f"--set length={length}" + (f" --set queries.start={length // 4}" if length <= 32 else "")
    dataset = shlex.quote(run.dataset or "builtin:python-docs")
    models = " ".join(f"--model checkpoint:{end.checkpoint_id}" for end in missing)
    st.caption("This command measures the last checkpoints that have no profile yet:")
    st.code(
        f"keyhole submit suite --probe attention_profile {models} \\\n  --dataset {dataset} {settings}",
        language="bash",
        wrap_lines=True,
    )
