"""The claim of Figure 4 from distances of which the answer is known."""

from itertools import combinations

import pytest

from dashboard.stability import Checkpoint, between, by_run_and_step, last_of_runs, stability, words
from dashboard.views.pattern_stability_runs import runs_against_steps, statement

RUNS = [
    Checkpoint(3 * r + n, run, step, f"path:{run}/{step}")
    for r, run in enumerate("ab")
    for n, step in enumerate((0, 100, 900))
]


def distances(to_end: dict[int, float], between_runs: float) -> dict[tuple[int, int], float]:
    """``to_end`` by step within each run; every two checkpoints of different runs are ``between_runs`` apart."""
    found = {}
    for a, b in combinations(RUNS, 2):
        found[a.number, b.number] = between_runs if a.run != b.run else to_end[a.step]
    return found


def test_the_claim_holds_from_the_first_step_after_which_every_run_is_nearer_to_its_end() -> None:
    found = stability(RUNS, distances({0: 0.5, 100: 0.1}, 0.3))
    assert found.holds_from == 100
    assert [each.distance for each in found.to_end] == [0.5, 0.1, 0.5, 0.1]
    assert found.between_ends == [0.3]
    assert found.within_runs == pytest.approx((0.5 + 0.5 + 0.1) / 3)
    assert found.between_runs == pytest.approx(0.3)
    said = statement(found)
    assert "holds from step 100 on" in said and "(0.100 at most)" in said and "(0.300 at least)" in said


def test_a_later_checkpoint_that_is_farther_undoes_the_claim_of_earlier_ones() -> None:
    found = stability(RUNS, distances({0: 0.1, 100: 0.4}, 0.3))
    assert found.holds_from is None
    assert "does not hold" in statement(found) and "0.400" in statement(found)


def test_one_run_that_is_farther_is_enough() -> None:
    table = distances({0: 0.5, 100: 0.1}, 0.3)
    table[4, 5] = 0.3  # as far as the ends: not nearer
    assert stability(RUNS, table).holds_from is None


@pytest.mark.parametrize("chosen", [RUNS[:3], [RUNS[2], RUNS[5]]])
def test_one_run_or_nothing_but_ends_tell_nothing(chosen: list[Checkpoint]) -> None:
    found = stability(chosen, distances({0: 0.5, 100: 0.1}, 0.3))
    assert not found.told
    assert "cannot be told" in statement(found)


def test_the_end_of_a_run_is_its_largest_step_whatever_its_number() -> None:
    shuffled = [Checkpoint(0, "a", 900, ""), Checkpoint(1, "a", 0, ""), Checkpoint(2, "b", 5, "")]
    assert {run: end.number for run, end in last_of_runs(shuffled).items()} == {"a": 0, "b": 2}
    assert between({(0, 1): 0.25}, 1, 0) == 0.25
    assert between({}, 1, 1) == 0


def test_distances_in_words_keep_two_digits_however_small() -> None:
    assert [words(value) for value in (0.0, 0.1234, 0.00012, None, float("nan"))] == [
        "0.000",
        "0.123",
        "1.2e-04",
        "–",
        "–",
    ]


def test_steps_are_told_one_by_one_beside_what_runs_differ_by() -> None:
    table = distances({0: 0.5, 100: 0.1}, 0.3)
    table[3, 5] = 0.7  # run b at step 0 from its end
    found = stability(RUNS, table)
    assert [(each.step, each.runs) for each in found.steps] == [(0, 2), (100, 2)]
    assert (found.steps[0].mean_to_end, found.steps[0].farthest_to_end) == (pytest.approx(0.6), 0.7)
    assert found.steps[1].between_runs == pytest.approx(0.3)


def test_runs_differ_more_than_steps_or_not() -> None:
    assert "differ more than steps" in runs_against_steps(stability(RUNS, distances({0: 0.1, 100: 0.1}, 0.3)))
    assert "differ no more than steps" in runs_against_steps(stability(RUNS, distances({0: 0.5, 100: 0.5}, 0.3)))
    assert runs_against_steps(stability(RUNS[:3], distances({0: 0.1, 100: 0.1}, 0.3))) == ""


def test_run_9_stands_before_run_10() -> None:
    shuffled = [Checkpoint(0, "run 10", 0, ""), Checkpoint(1, "run 9", 500, ""), Checkpoint(2, "run 9", 0, "")]
    assert [each.number for each in sorted(shuffled, key=by_run_and_step)] == [2, 1, 0]
