"""The statistics of sweeps against scipy, closed forms, and many sweeps drawn by chance."""

import math

import numpy as np
import pytest
from scipy import stats

from db.sweep_results import Outcome, pooled_noise, summarized

RATE = "optimizer.learning_rate"


def outcomes(losses: dict[tuple[str, float], list[float | None]]) -> list[Outcome]:
    """By variant and learning rate, the final losses by seed."""
    return [
        Outcome(variant, {RATE: rate}, seed, loss)
        for (variant, rate), by_seed in losses.items()
        for seed, loss in enumerate(by_seed)
    ]


def test_each_variant_s_best_setting_is_that_of_least_mean_loss():
    result = summarized(
        outcomes({("control", 1e-3): [3.1, 3.3], ("control", 3e-3): [3.0, 3.1], ("natq", 1e-3): [3.2, 3.2]})
    )
    assert {variant: best.setting for variant, best in result.best.items()} == {
        "control": {RATE: 3e-3},
        "natq": {RATE: 1e-3},
    }
    assert result.best["control"].mean_nats == pytest.approx(3.05, abs=1e-12)
    assert result.best["control"].sd_nats == pytest.approx(0.1 / math.sqrt(2), abs=1e-12)


def test_a_setting_that_lost_a_seed_does_not_win_by_those_that_are_left():
    result = summarized(outcomes({("control", 1e-3): [3.0, 3.1], ("control", 1e-1): [2.0, None]}))
    assert result.best["control"].setting == {RATE: 1e-3}


def test_the_best_so_far_is_told_before_all_have_ended():
    result = summarized(outcomes({("control", 1e-3): [3.0, None], ("control", 1e-1): [None, None]}))
    assert result.best["control"].losses_nats == [3.0]
    assert summarized(outcomes({("control", 1e-3): [None]})).best == {}


def test_noise_of_equal_groups_is_the_root_of_the_residual_variance_of_an_analysis_of_variance():
    """With two groups F = t² and t comes from the pooled variance: solved for it."""
    generator = np.random.default_rng(0)
    one, other = generator.normal(3.0, 0.01, 5), generator.normal(3.02, 0.01, 5)
    noise = pooled_noise([list(one), list(other), [7.0]])
    t, _ = stats.ttest_ind(one, other)
    error = abs(one.mean() - other.mean()) / abs(t)
    assert noise is not None
    assert noise.degrees_of_freedom == 8
    assert noise.sd_nats * math.sqrt(2 / 5) == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("shift", [0.001, 0.02])
def test_with_one_setting_each_the_verdict_is_that_of_student_s_test(shift: float):
    generator = np.random.default_rng(1)
    one, other = generator.normal(3.0, 0.01, 6), generator.normal(3.0 + shift, 0.01, 4)
    (difference,) = summarized(outcomes({("control", 1e-3): list(one), ("natq", 1e-3): list(other)})).differences
    tested = stats.ttest_ind(other, one)  # equal variances: pooled, as here
    assert difference.difference_nats == pytest.approx(other.mean() - one.mean(), abs=1e-12)
    assert difference.standard_error_nats == pytest.approx(difference.difference_nats / tested.statistic, rel=1e-9)
    assert (difference.verdict == "differs") == (tested.pvalue <= 0.05)
    low, high = tested.confidence_interval()
    assert difference.least_nats == pytest.approx((high - low) / 2, rel=1e-9)


def test_with_one_seed_each_nothing_is_told_from_noise():
    result = summarized(outcomes({("control", 1e-3): [3.0], ("natq", 1e-3): [9.0]}))
    (difference,) = result.differences
    assert (result.noise, difference.verdict, difference.standard_error_nats) == (None, "within noise", None)
    assert "no setting has two seeds" in difference.reason


def test_equal_losses_do_not_differ():
    (difference,) = summarized(outcomes({("control", 1): [3.0, 3.0], ("natq", 1): [3.0, 3.0]})).differences
    assert (difference.verdict, difference.reason) == ("within noise", "their means are equal")


def test_a_difference_too_small_for_four_digits_does_not_read_as_none():
    (difference,) = summarized(outcomes({("control", 1): [3.0, 3.1], ("natq", 1): [3.00001, 3.10001]})).differences
    assert difference.reason.startswith("1.0e-05 nats is less than the 0.3042 that seed noise of 0.0707")


def test_the_lead_of_a_best_setting_is_judged_by_student_s_test_against_the_next_of_as_many_seeds():
    near: list[float | None] = [3.02, 3.00, 3.04]
    short: list[float | None] = [3.005, 3.005, None]
    result = summarized(outcomes({("control", 1): [3.0, 3.01, 3.02], ("control", 2): near, ("control", 3): short}))
    (lead,) = result.leads
    assert (lead.next_setting, lead.verdict) == ({RATE: 2}, "within noise")
    assert lead.lead_nats == pytest.approx(0.01, abs=1e-12)
    two = summarized(outcomes({("control", 1): [3.0, 3.01, 3.02], ("control", 2): [3.2, 3.21, 3.22]}))
    _, chance = stats.ttest_ind([3.0, 3.01, 3.02], [3.2, 3.21, 3.22])
    assert chance < 0.05
    assert two.leads[0].verdict == "differs"
    assert summarized(outcomes({("control", 1): [3.0, 3.1]})).leads == []


def share_that_differ(settings: int, seeds: int, shift: float, sweeps: int = 2000) -> float:
    """Share of sweeps, drawn with settings of equal mean and the second variant shifted, that report a difference."""
    generator = np.random.default_rng(2)
    losses = generator.normal(3.0, 0.01, (sweeps, 2, settings, seeds))
    losses[:, 1] += shift
    found = 0
    for sweep in losses:
        by_setting = {
            (variant, float(rate)): list(sweep[place, rate])
            for place, variant in enumerate(("control", "natq"))
            for rate in range(settings)
        }
        found += summarized(outcomes(by_setting)).differences[0].verdict == "differs"  # type: ignore[arg-type]
    return found / sweeps


def test_without_a_difference_one_sweep_in_twenty_reports_one():
    """Binomial with 2,000 draws: standard deviation 0.0049; four of them."""
    assert share_that_differ(settings=1, seeds=3, shift=0.0) == pytest.approx(0.05, abs=0.02)


def test_choosing_the_best_of_several_settings_makes_no_differences():
    """The least of six means varies less than one mean, so that fewer than one in twenty report a difference."""
    assert share_that_differ(settings=6, seeds=3, shift=0.0) < 0.05


def test_a_difference_of_three_standard_errors_is_mostly_found():
    """Power of the t-test, from the noncentral t distribution: 4 degrees of freedom, noncentrality 3."""
    error = 0.01 * math.sqrt(2 / 3)
    quantile = stats.t.ppf(0.975, 4)
    power = stats.nct.sf(quantile, 4, 3) + stats.nct.cdf(-quantile, 4, 3)
    assert share_that_differ(settings=1, seeds=3, shift=3 * error) == pytest.approx(power, abs=0.045)


def test_settings_of_which_fewer_seeds_finished_than_of_others_are_named() -> None:
    whole = [Outcome("control", {"rate": rate}, seed, 3.0 + rate) for rate in (0.1, 0.2) for seed in (0, 1)]
    assert summarized(whole).lacking is None
    short = [*whole, Outcome("natq", {"rate": 0.1}, 0, 2.0), Outcome("natq", {"rate": 0.1}, 1, None)]
    lacking = summarized(short).lacking
    assert lacking is not None
    assert "natq, rate 0.1 (1 of 2)." in lacking
    many = [Outcome("natq", {"rate": float(rate)}, 0, None) for rate in range(5)]
    lacking = summarized([*whole, *many]).lacking
    assert lacking is not None
    assert "; and 2 more." in lacking
