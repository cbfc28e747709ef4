"""Differences of groups against the noise of seeds, for any number of a run."""

import math

import pytest
from scipy import stats

from dashboard.run_comparison import compared, reference_of
from dashboard.run_names import groups
from dashboard.sweep_words import difference_words, with_spread
from tests.unit.dashboard.test_run_names import run

RUNS = [run(1, variants=["natq"]), run(2), run(3, variants=["natq"], seed=1), run(4, seed=1), run(5, seed=2)]


def test_the_control_is_the_reference_wherever_it_stands() -> None:
    assert reference_of(groups(RUNS)).numbers == [2, 4, 5]
    assert reference_of(groups(RUNS[:1])).numbers == [1]


def test_a_difference_counts_as_a_t_test_of_equal_variances_says() -> None:
    values: dict[int, float | None] = {1: 5.0, 3: 5.4, 2: 4.0, 4: 4.3, 5: 4.4}
    noise, found = compared(groups(RUNS), values)
    natq, control = [5.0, 5.4], [4.0, 4.3, 4.4]
    p = stats.ttest_ind(natq, control).pvalue
    assert found["natq"].difference_nats == pytest.approx(sum(natq) / 2 - sum(control) / 3)
    assert (found["natq"].verdict == "differs") == (p < 0.05)
    assert noise is not None and noise.degrees_of_freedom == 3
    near = values | {1: 4.2, 3: 4.4}
    assert compared(groups(RUNS), near)[1]["natq"].verdict == "within noise"
    assert stats.ttest_ind([4.2, 4.4], control).pvalue > 0.05


def test_a_group_without_the_number_is_left_out() -> None:
    assert compared(groups(RUNS), {1: None, 2: 4.0, 4: 4.1})[1] == {}


def test_words_say_which_side_and_whether_it_counts() -> None:
    found = compared(groups(RUNS), {1: 5.0, 3: 5.01, 2: 4.0, 4: 4.01, 5: 4.02})[1]["natq"]
    assert difference_words(found).startswith("**natq ends 0.9950 nats higher than control, beyond seed noise**")


def test_a_spread_needs_two_values() -> None:
    assert with_spread([]) == "–"
    assert with_spread([3.0]) == "3.0000"
    assert with_spread([3.0, 3.1]) == f"3.0500 ± {math.sqrt(2) * 0.05:.4f}"
