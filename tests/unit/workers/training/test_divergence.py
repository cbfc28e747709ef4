"""When a run is given up, and when not."""

import json
import math

import pytest

from workers.training.divergence import MEMORY, NATS, STEPS, DivergedError, Watch


def seen(losses: list[float]) -> Watch:
    watch = Watch()
    for step, loss in enumerate(losses, 1):
        watch.see(step, loss, 1.0)
    return watch


@pytest.mark.parametrize(("loss", "norm", "named"), [(math.nan, 1.0, "loss is nan"), (2.0, math.inf, "norm is inf")])
def test_what_is_not_finite_ends_the_run_at_once(loss: float, norm: float, named: str) -> None:
    watch = seen([4.0, 3.0])
    with pytest.raises(DivergedError, match=named) as ended:
        watch.see(3, loss, norm)
    assert (ended.value.step, ended.value.sound_step) == (3, 2)


def test_a_loss_that_stays_far_above_its_best_ends_the_run_and_names_the_step_before() -> None:
    level, best = 6.0, 3.0
    with pytest.raises(DivergedError) as ended:
        seen([best] * 50 + [level] * (STEPS + 100))
    # the mean over the losses closes in on the level by a factor 1 − 1/MEMORY a step, and passes the limit after n
    n = math.ceil(math.log(1 - NATS / (level - best)) / math.log(1 - 1 / MEMORY))
    assert ended.value.sound_step == 50 + n - 1
    assert ended.value.step == 50 + n - 1 + STEPS
    assert "more than 1.5 above its best, 3.000" in ended.value.what


def test_spikes_that_the_run_recovers_from_and_slow_rises_below_the_limit_are_let_be() -> None:
    seen([3.0] * 50 + [9.0] * 100 + [3.0] * 100 + [9.0] * 100 + [3.0] * 300)
    seen([3.0] * 50 + [4.4] * 1000)
    seen([12.0] * 500)


def test_the_watch_goes_on_after_json_as_if_nothing_had_been() -> None:
    losses = [4 + math.sin(step) for step in range(30)] + [9.0] * 300
    whole, cut = Watch(), Watch()
    ends = []
    for watch in (whole, cut):
        with pytest.raises(DivergedError) as ended:
            for step, loss in enumerate(losses, 1):
                watch.see(step, loss, 1.0)
                if watch is cut:
                    restored = Watch.restored(json.loads(json.dumps(watch.stored())))
                    assert restored == watch
                    watch.__dict__.update(restored.__dict__)
        ends.append(ended.value.step)
    assert ends[0] == ends[1]
