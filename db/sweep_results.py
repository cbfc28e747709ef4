"""What the final losses of a sweep tell: each variant's best setting, the noise between seeds, and the differences.

A *setting* here is one variant with one value on each axis; its seeds are repetitions. The noise is the standard
deviation between seeds, pooled over all settings with two seeds or more: s² = Σ (n_i − 1) s_i² / Σ (n_i − 1). Two
variants are compared at their best settings, those of least mean loss: their means differ by more than noise if
|difference| ≥ t · s · √(1/n_1 + 1/n_2), with t the two-sided 95 % quantile of Student's distribution at the pooled
degrees of freedom. Without any two seeds of one setting nothing can be told from noise.

Assumed: equal variance of all settings. Settings near divergence have more, so the verdict errs to the side of noise.
The best of several settings is lower than its expectation by luck, for all variants alike where they share the axes.
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy.special import stdtrit  # quantile of Student's distribution; scipy.stats takes a second to import

CONFIDENCE = 0.95  # two-sided
Verdict = Literal["differs", "within noise"]


@dataclass(frozen=True)
class Outcome:
    """One member of a sweep."""

    variant: str
    setting: Mapping[str, Any]
    seed: int
    final_loss_nats: float | None  # validation loss at the last step; None if it has not, or never, come there


@dataclass(frozen=True)
class SettingResult:
    """One setting of a variant over its seeds."""

    variant: str
    setting: Mapping[str, Any]
    seeds: int  # how many it has
    losses_nats: Sequence[float]  # of those that finished

    @property
    def mean_nats(self) -> float | None:
        return statistics.fmean(self.losses_nats) if self.losses_nats else None

    @property
    def sd_nats(self) -> float | None:
        """Sample standard deviation over the seeds; None with fewer than two."""
        return statistics.stdev(self.losses_nats) if len(self.losses_nats) > 1 else None


@dataclass(frozen=True)
class Noise:
    sd_nats: float
    degrees_of_freedom: int


@dataclass(frozen=True)
class Difference:
    """Second variant's best minus first variant's best."""

    first: str
    second: str
    difference_nats: float
    standard_error_nats: float | None  # None without an estimate of the noise
    least_nats: float | None  # what |difference| must reach to count
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class SweepResult:
    settings: Sequence[SettingResult]
    best: Mapping[str, SettingResult]  # by variant, those with at least one finished seed
    noise: Noise | None
    differences: Sequence[Difference]


def summarized(outcomes: Iterable[Outcome]) -> SweepResult:
    """The result so far: of the members that have a final loss."""
    settings = _settings(outcomes)
    best = _best(settings)
    noise = pooled_noise([each.losses_nats for each in settings])
    pairs = itertools.combinations(best.values(), 2)
    return SweepResult(settings, best, noise, [_difference(one, other, noise) for one, other in pairs])


def pooled_noise(groups: Iterable[Sequence[float]]) -> Noise | None:
    """Standard deviation within groups of repetitions, pooled over those of two or more; None without any."""
    repeated = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if not freedom:
        return None
    squares = math.fsum(statistics.variance(group) * (len(group) - 1) for group in repeated)
    return Noise(math.sqrt(squares / freedom), freedom)


def _settings(outcomes: Iterable[Outcome]) -> list[SettingResult]:
    members: dict[tuple[str, str], list[Outcome]] = {}
    for each in outcomes:
        members.setdefault((each.variant, json.dumps(each.setting, sort_keys=True)), []).append(each)
    return [
        SettingResult(
            variant,
            group[0].setting,
            len(group),
            [each.final_loss_nats for each in group if each.final_loss_nats is not None],
        )
        for (variant, _), group in members.items()
    ]


def _best(settings: Sequence[SettingResult]) -> dict[str, SettingResult]:
    """Each variant's setting of least mean loss, among those of which most seeds finished.

    A setting that lost a seed, by divergence or because it was given up, does not win by the seeds that are left.
    """
    best: dict[str, SettingResult] = {}
    for variant in dict.fromkeys(each.variant for each in settings):
        finished = [each for each in settings if each.variant == variant and each.losses_nats]
        most = max((len(each.losses_nats) for each in finished), default=0)
        if most:
            best[variant] = min(
                (each for each in finished if len(each.losses_nats) == most),
                key=lambda each: statistics.fmean(each.losses_nats),
            )
    return best


def _difference(one: SettingResult, other: SettingResult, noise: Noise | None) -> Difference:
    difference = statistics.fmean(other.losses_nats) - statistics.fmean(one.losses_nats)
    if noise is None:
        reason = "no setting has two seeds, so that nothing tells how much runs differ by chance"
        return Difference(one.variant, other.variant, difference, None, None, "within noise", reason)
    error = noise.sd_nats * math.sqrt(1 / len(one.losses_nats) + 1 / len(other.losses_nats))
    least = float(stdtrit(noise.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * error
    verdict: Verdict = "differs" if abs(difference) >= least and difference else "within noise"
    reason = (
        f"{abs(difference):.4f} nats is {'no less' if verdict == 'differs' else 'less'} than the {least:.4f} that seed "
        f"noise of {noise.sd_nats:.4f} (one standard deviation, {noise.degrees_of_freedom} degrees of freedom) reaches "
        f"in one of twenty cases"
    )
    return Difference(one.variant, other.variant, difference, error, least, verdict, reason)
