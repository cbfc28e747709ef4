"""When rules raise alerts: at the first crossing of a place, and again only after it has recovered."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.repositories.watch_rules import Place
from services.api import crossings
from services.api.crossings import Reading, judge
from services.api.readings import below as is_below
from services.api.readings import jumps
from services.contracts.rule_texts import parse
from services.contracts.rules import LossJumpRule, MetricRule, SigmaRule

HEAD = Place(2, 5)


def series(values, *, place=HEAD, limit=1.0, back=1.1) -> list[Reading]:
    return [Reading(step, place, value, limit, back) for step, value in enumerate(values)]


def test_one_crossing_raises_one_alert_and_a_further_one_only_after_recovery():
    values = [2.0, 0.9, 0.5, 1.05, 0.9, 1.2, 0.8]  # 1.05 is above the limit, but not yet recovered
    outcome = judge(series(values), set(), below=True)
    assert [(each.reading.step, each.reading.value) for each in outcome.raised] == [(1, 0.9), (6, 0.8)]
    assert outcome.met == {HEAD: outcome.raised[-1].reading}
    assert not outcome.recovered


def test_places_are_independent():
    other = Place(2, 6)
    rows = [*series([0.5, 2.0]), *series([2.0, 0.5], place=other)]
    outcome = judge(rows, set(), below=True)
    assert {(each.reading.place, each.reading.step) for each in outcome.raised} == {(HEAD, 0), (other, 1)}
    assert set(outcome.met) == {other}


def test_the_limit_itself_meets_no_rule():
    assert not judge(series([1.0]), set(), below=True).raised
    assert not judge(series([1.0], back=0.9), set(), below=False).raised


def test_nan_is_above_every_limit_and_below_none_and_never_a_recovery():
    assert not judge(series([math.nan]), set(), below=True).raised
    assert judge(series([math.nan], back=0.9), set(), below=False).raised
    assert not judge(series([math.nan], back=0.9), {HEAD}, below=False).recovered


@given(st.lists(st.floats(0, 2), max_size=30), st.lists(st.integers(0, 30), max_size=4), st.booleans())
def test_looking_often_or_rarely_raises_the_same(values, cuts, below):
    """However a series is cut into looks, the alerts are those of one look over all of it."""
    rows = series(values, limit=1.0, back=1.1 if below else 0.9)
    whole = judge(rows, set(), below=below)
    met: set[Place] = set()
    raised = []
    places = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, stop in pairwise(places):
        outcome = judge(rows[start:stop], met, below=below)
        raised += [each.reading.step for each in outcome.raised]
        met -= outcome.recovered
        met |= outcome.met.keys()
    assert raised == [each.reading.step for each in whole.raised]
    assert met == set(whole.met)


def test_a_collapse_of_all_heads_raises_as_many_alerts_as_are_allowed_and_counts_the_others():
    places = [Place(layer, head) for layer, head in product(range(12), range(12))]
    rows = [Reading(7, place, 0.001 * number, 1.0, 1.1) for number, place in enumerate(places)]
    outcome = judge(rows, set(), below=True)
    assert len(outcome.raised) == crossings.MOST_ALERTS
    assert [each.reading.value for each in outcome.raised] == sorted(row.value for row in rows)[: crossings.MOST_ALERTS]
    assert [each.others for each in outcome.raised] == [0] * (crossings.MOST_ALERTS - 1) + [144 - crossings.MOST_ALERTS]
    assert len(outcome.met) == 144, "the rule is met at the others too, and silent there until they recover"


def test_a_place_that_was_met_and_recovers_is_told():
    outcome = judge(series([1.2]), {HEAD}, below=True)
    assert outcome.recovered == {HEAD}
    assert not outcome.met


def test_a_place_that_recovers_and_crosses_again_is_both():
    outcome = judge(series([1.2, 0.5]), {HEAD}, below=True)
    assert (outcome.recovered, set(outcome.met), len(outcome.raised)) == ({HEAD}, {HEAD}, 1)


def rule_of(text: str) -> LossJumpRule:
    return LossJumpRule.model_validate(parse(text))


@pytest.mark.parametrize("text", ["loss jump 0.5", "loss jump 0.5 over median of 3", "loss jump 0.5 over minimum",
                                  "validation loss jump 10%", "loss jump 20% over median of 5"])  # fmt: skip
def test_jumps_are_measured_from_the_earlier_losses(text):
    """Against the definition written down with NumPy, one loss at a time."""
    rule = rule_of(text)
    losses = np.random.default_rng(3).gamma(3.0, 1.0, 60)
    found = jumps(rule, [(step, float(loss)) for step, loss in enumerate(losses)], {}).rows
    first, *later = found
    assert [row.step for row in found] == list(range(60))
    assert first.limit > 1e300, "the first has no earlier ones, and is no jump"
    for row in later:
        earlier = losses[: row.step]
        base = earlier.min() if rule.reference == "minimum" else np.median(earlier[-rule.window :])
        size = rule.above if rule.unit == "nats" else base * rule.above / 100
        assert row.limit == pytest.approx(base + size, rel=1e-12)  # sums in another order
        assert row.back == pytest.approx(base + 0.9 * size, rel=1e-12)
        assert row.value == losses[row.step]


@given(
    st.lists(st.floats(0.1, 20), min_size=2, max_size=40), st.integers(1, 39), st.sampled_from(["minimum", "median"])
)
def test_losses_looked_at_in_two_goes_are_compared_with_the_same(losses, cut, over):
    rule = LossJumpRule(above=0.5, over=over, window=5)
    given_ = list(enumerate(losses))
    first = jumps(rule, given_[:cut], {})
    second = jumps(rule, given_[cut:], first.memory)
    assert first.rows + second.rows == jumps(rule, given_, {}).rows


def test_a_loss_that_is_not_finite_is_a_jump_and_no_measure_for_others():
    rows = jumps(LossJumpRule(above=0.5), [(1, math.nan), (2, 3.0), (3, math.inf), (4, 3.2)], {}).rows
    outcome = judge(rows, set(), below=False)
    assert [each.reading.step for each in outcome.raised] == [1, 3]
    assert not outcome.met, "3.2 is what it was"


def test_rules_say_on_which_side_they_are_met():
    assert is_below(MetricRule(metric="entropy_nats", below=1))
    assert not is_below(MetricRule(metric="entropy_nats", above=1))
    assert not is_below(SigmaRule(above=1))
    assert not is_below(LossJumpRule(above=1))
