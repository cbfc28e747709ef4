"""Which settings of a sweep are given up, and why."""

from db.repositories.sweep_stopping import Contender
from services.api.early_stopping import hopeless
from services.contracts.training.sweep import EarlyStopping


def contenders(*settings: tuple[str, str], seeds: int = 1, diverged: set[int] = frozenset()) -> list[Contender]:  # type: ignore[assignment]
    """Members of these (variant, setting), numbered by seed, then setting, as sweeps make them."""
    found = []
    for seed in range(seeds):
        for variant, setting in settings:
            number = len(found)
            error = "diverged" if number in diverged else None
            found.append(Contender(number, variant, setting, seed, error, True))
    return found


def test_a_setting_much_worse_than_the_best_of_its_variant_at_the_same_step_is_given_up():
    members = contenders(("control", "a"), ("control", "b"), ("control", "c"), ("natq", "a"))
    losses = {0: {10: 3.0}, 1: {10: 3.21}, 2: {10: 3.19}, 3: {10: 9.0}}
    given_up = hopeless(members, losses, EarlyStopping(after_steps=[10], worse_by_nats=0.2))
    assert set(given_up) == {("control", "b")}, "natq is compared with natq only"
    assert "3.2100 nats at step 10, 0.2100 above the best" in given_up["control", "b"]


def test_losses_at_other_steps_and_of_members_that_are_not_there_yet_count_for_nothing():
    members = contenders(("control", "a"), ("control", "b"), ("control", "c"))
    losses = {0: {10: 3.0, 20: 2.0}, 1: {10: 3.1}, 2: {}}
    assert hopeless(members, losses, EarlyStopping(after_steps=[10], worse_by_nats=0.2)) == {}
    assert hopeless(members, losses, EarlyStopping(after_steps=[20], worse_by_nats=0.2)) == {}


def test_the_best_share_of_those_that_have_come_to_a_step_goes_on_rounded_up():
    members = contenders(*(("control", name) for name in "abcde"))
    losses = {number: {10: 3.0 + number / 10} for number in range(5)}
    rule = EarlyStopping(after_steps=[10], keep_fraction=0.5)
    assert set(hopeless(members, losses, rule)) == {("control", "d"), ("control", "e")}
    assert hopeless(members, {0: {10: 3.0}}, rule) == {}, "alone nobody is hopeless"


def test_seeds_of_one_setting_share_its_fate_by_their_mean():
    members = contenders(("control", "a"), ("control", "b"), seeds=2)
    losses = {0: {10: 3.0}, 1: {10: 3.3}, 2: {10: 3.2}, 3: {10: 3.0}}  # means 3.1 and 3.15
    assert hopeless(members, losses, EarlyStopping(after_steps=[10], worse_by_nats=0.1)) == {}
    assert set(hopeless(members, losses, EarlyStopping(after_steps=[10], worse_by_nats=0.04))) == {("control", "b")}


def test_later_steps_judge_again():
    members = contenders(("control", "a"), ("control", "b"))
    losses = {0: {10: 3.0, 20: 2.5}, 1: {10: 3.1, 20: 2.9}}
    given_up = hopeless(members, losses, EarlyStopping(after_steps=[20, 10], worse_by_nats=0.3))
    assert "step 20" in given_up["control", "b"]


def test_a_setting_of_which_a_seed_diverged_is_given_up():
    members = contenders(("control", "a"), ("control", "b"), seeds=2, diverged={1})
    given_up = hopeless(members, {}, EarlyStopping(after_steps=[10], worse_by_nats=0.3))
    assert given_up == {("control", "b"): "seed 0 diverged"}


def test_a_loss_that_is_no_number_does_not_become_the_best():
    members = contenders(("control", "a"), ("control", "b"))
    losses = {0: {10: float("nan")}, 1: {10: 3.1}}
    assert hopeless(members, losses, EarlyStopping(after_steps=[10], keep_fraction=0.5)) == {}
