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

from services.contracts.training.sweep import settings_in_words

CONFIDENCE = 0.95  # two-sided
_MOST_NAMED = 3
_EQUAL_NATS = 1e-9  # what rounding leaves between means of the same losses
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
class Lead:
    """By how much a variant's best setting is below its next one of as many finished seeds."""

    variant: str
    next_setting: Mapping[str, Any]
    lead_nats: float
    least_nats: float | None  # what it must reach to count, as for differences
    verdict: Verdict


@dataclass(frozen=True)
class SweepResult:
    settings: Sequence[SettingResult]
    best: Mapping[str, SettingResult]  # by variant, those with at least one finished seed
    leads: Sequence[Lead]  # of variants with a next setting
    noise: Noise | None
    differences: Sequence[Difference]
    lacking: str | None  # in words: settings of which fewer seeds finished than of others; None without any


def summarized(outcomes: Iterable[Outcome]) -> SweepResult:
    """The result so far: of the members that have a final loss."""
    settings = _settings(outcomes)
    best = _best(settings)
    noise = pooled_noise([each.losses_nats for each in settings])
    pairs = itertools.combinations(best.values(), 2)
    leads = [lead for each in best.values() if (lead := _lead(each, settings, noise)) is not None]
    differences = [_difference(one, other, noise) for one, other in pairs]
    return SweepResult(settings, best, leads, noise, differences, _lacking(settings))


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


def _lacking(settings: Sequence[SettingResult]) -> str | None:
    """A setting without some of its seeds loses to others of its variant unseen, or wins by those that are left."""
    most = max((len(each.losses_nats) for each in settings), default=0)
    found = [each for each in settings if len(each.losses_nats) < most]
    if not found:
        return None
    named = [
        f"{', '.join([each.variant, *settings_in_words(each.setting)])} ({len(each.losses_nats)} of {each.seeds})"
        for each in found[:_MOST_NAMED]
    ]
    others = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"Fewer finished seeds than other settings: {'; '.join(named)}{others}. A setting is its variant's best only "
        "if no other of the variant has more finished seeds."
    )


def _lead(best: SettingResult, settings: Sequence[SettingResult], noise: Noise | None) -> Lead | None:
    seeds = len(best.losses_nats)
    others = [
        each
        for each in settings
        if each.variant == best.variant and each is not best and len(each.losses_nats) == seeds
    ]
    if not others:
        return None
    following = min(others, key=lambda each: statistics.fmean(each.losses_nats))
    lead = statistics.fmean(following.losses_nats) - statistics.fmean(best.losses_nats)
    least = None if noise is None else _quantile(noise) * _error(noise, best, following)
    return Lead(best.variant, following.setting, lead, least, _verdict(lead, least))


def _difference(one: SettingResult, other: SettingResult, noise: Noise | None) -> Difference:
    difference = statistics.fmean(other.losses_nats) - statistics.fmean(one.losses_nats)
    if noise is None:
        reason = "no setting has two seeds, so that nothing tells how much runs differ by chance"
        return Difference(one.variant, other.variant, difference, None, None, "within noise", reason)
    error = _error(noise, one, other)
    least = _quantile(noise) * error
    verdict = _verdict(difference, least)
    reason = "their means are equal"
    if abs(difference) > _EQUAL_NATS:
        reason = (
            f"{_nats(difference)} nats is {'no less' if verdict == 'differs' else 'less'} than the {_nats(least)} that "
            f"seed noise of {_nats(noise.sd_nats)} (one standard deviation, {noise.degrees_of_freedom} degrees of "
            "freedom) reaches in one of twenty cases"
        )
    return Difference(one.variant, other.variant, difference, error, least, verdict, reason)


def _error(noise: Noise, one: SettingResult, other: SettingResult) -> float:
    """Standard error of the difference of two means."""
    return noise.sd_nats * math.sqrt(1 / len(one.losses_nats) + 1 / len(other.losses_nats))


def _quantile(noise: Noise) -> float:
    return float(stdtrit(noise.degrees_of_freedom, (1 + CONFIDENCE) / 2))


def _verdict(difference: float, least: float | None) -> Verdict:
    counts = least is not None and abs(difference) >= least and abs(difference) > _EQUAL_NATS
    return "differs" if counts else "within noise"


def _nats(value: float) -> str:
    """Four digits, and those that there are of a smaller number, which would read as 0."""
    return f"{abs(value):.4f}" if abs(value) >= 5e-5 or not value else f"{abs(value):.1e}"
