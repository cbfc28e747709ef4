"""What is due when."""

from tests.unit.workers.training.small_runs import parameters
from workers.training.due import checkpoint_reasons, is_logged, is_validated


def test_first_and_last_are_always_due() -> None:
    asked = parameters(
        steps=7, checkpoints={"every": None, "log_spaced": False}, validation={"every": 100, "log_every": 100}
    )
    assert [step for step in range(8) if is_validated(asked, step)] == [0, 7]
    assert [step for step in range(8) if is_logged(asked, step)] == [1, 7]
    assert {step: reasons for step in range(8) if (reasons := checkpoint_reasons(asked, step))} == {
        0: ["first"],
        7: ["last"],
    }


def test_log_spaced_are_the_powers_of_two() -> None:
    asked = parameters(steps=70, checkpoints={"every": 32, "log_spaced": True, "steps": [0, 16, 70]})
    found = {step: reasons for step in range(71) if (reasons := checkpoint_reasons(asked, step))}
    assert found == {
        0: ["first", "asked"],
        1: ["log"],
        2: ["log"],
        4: ["log"],
        8: ["log"],
        16: ["log", "asked"],
        32: ["log", "interval"],
        64: ["log", "interval"],
        70: ["asked", "last"],
    }
