"""`make demo`: every probe on the built-in model and text, small, through the API, as any user would ask.

python -m services.local.demo           needs a running stack (`keyhole up`)
"""

import sys
from dataclasses import dataclass
from typing import Literal

from services.cli import output, suites
from services.client import Keyhole, Suite
from services.contracts.errors import KeyholeError
from services.contracts.jobs import SummaryRow
from services.contracts.settings import settings
from services.contracts.states import JobState
from services.contracts.suites import SuiteJob
from services.local import stack_file

PRESET = "demo/tour"


@dataclass(frozen=True)
class Figure:
    """One number of a kind's job summary and what to call it."""

    metric: str
    statistic: Literal["median", "mean", "maximum"]
    text: str  # with {value}
    log10: bool = False


FIGURES: dict[str, tuple[Figure, ...]] = {
    "gradient_scale": (
        Figure("log10_d_a", "median", "median D_a {value:.0f}", log10=True),
        Figure("log10_d_c", "median", "median D_c {value:.1f}", log10=True),
    ),
    "ratchet": (
        Figure("lead_grows", "mean", "lead of the top key in advantage grows in {value:.0%} of the queries"),
        Figure("odds_grow", "mean", "its odds in {value:.0%}"),
    ),
    "buried_keys": (
        Figure("abstains", "mean", "no coalition in {value:.0%} of the queries"),
        Figure(
            "log10_attention_rank", "maximum", "deepest attention rank of a coalition's key {value:.0f}", log10=True
        ),
    ),
    "attention_profile": (
        Figure("entropy_nats", "mean", "mean entropy {value:.2f} nats"),
        Figure("top_weight", "mean", "mean top weight {value:.2f}"),
        Figure("sink_mass", "mean", "mean weight on key 0 {value:.2f}"),
    ),
    "entropy_bound": (
        Figure("gap_mean", "mean", "a row's entropy lies above its bound by {value:.2f} nats in the mean"),
    ),
    "jacobian_spectrum": (
        Figure("effective_rank", "median", "median effective rank {value:.2f}"),
        Figure("effective_rank_below_10", "mean", "below 10 in {value:.1%} of the queries"),
    ),
    "shared_routing": (
        Figure("extra_loss_nats", "median", "median extra loss over all layers {value:.4f} nats"),
        Figure("extra_loss_nats", "maximum", "largest {value:.1f} nats"),
    ),
    "calibration": (
        Figure("r", "median", "median r {value:.2f}"),
        Figure("r_above_1_5", "mean", "above 1.5 in {value:.1%}"),
    ),
    "pattern_stability": (
        Figure("js_nats", "median", "median divergence of full and three-bit patterns {value:.4f} nats"),
    ),
}

PER_KIND = """\
SELECT kind, metric, n, mean, median FROM suite_job JOIN job ON job.id = job_id JOIN job_summary USING (job_id)
WHERE suite_id = {suite} ORDER BY suite_job.position, metric"""


def main() -> int:
    try:
        with Keyhole() as keyhole:
            suite = keyhole.submit_suite(PRESET)
            _announce(suite)
            suites.follow(suite)
            _show(keyhole, suite)
    except KeyholeError as error:
        output.message(f"Error: {error}")
        return 1
    except KeyboardInterrupt:
        output.message("\nStopped watching; the jobs go on. See them with: keyhole jobs")
        return 130
    return 0 if all(member.state is JobState.SUCCEEDED for member in suite.detail.members) else 1


def _announce(suite: Suite) -> None:
    members = suite.detail.members
    if all(member.reused and member.state.terminal for member in members):
        output.message(f"Suite {suite.id}: all {len(members)} jobs were measured already; nothing is computed again.")
    else:
        output.message(f"Submitted suite {suite.id}, preset {PRESET}: {len(members)} jobs on the built-in model.")


def _show(keyhole: Keyhole, suite: Suite) -> None:
    output.data()
    output.table(
        ("job", "kind", "rows", "took", "what came out"),
        [
            (
                member.id,
                member.kind,
                f"{member.progress.rows:,}",
                output.duration(member.duration_s),
                _found(keyhole.job(member.id).summary_rows(level="job"), member),
            )
            for member in suite.detail.members
        ],
    )
    statement = PER_KIND.format(suite=suite.id)
    output.data(f"\nThese and all other metrics are this SQL (keyhole sql, or keyhole psql):\n\n{statement}\n")
    stack = stack_file.read(settings().home.expanduser().absolute())
    if stack is not None:
        output.data(
            f"Dashboard: {stack.dashboard_url}/suites?suite={suite.id}    API: {stack.api_url}/docs    "
            "Stop everything: make down"
        )


def _found(rows: list[SummaryRow], member: SuiteJob) -> str:
    """What the job found, in a few words."""
    if member.state is not JobState.SUCCEEDED:
        return member.error.message if member.error else str(member.state)
    by_metric = {row.metric: row for row in rows}
    told = []
    for figure in FIGURES.get(member.kind, ()):
        row = by_metric.get(figure.metric)
        value = getattr(row, figure.statistic) if row else None
        if value is not None:
            told.append(figure.text.format(value=10**value if figure.log10 else value))
    return ", ".join(told)


if __name__ == "__main__":
    sys.exit(main())
