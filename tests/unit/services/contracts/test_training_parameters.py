"""Parameters of a training: numbers that no run can follow are refused when it is submitted."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.contracts.training.training import TrainingParameters


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"checkpoints": {"steps": [-1]}}, "checkpoints.steps.0"),
        ({"steps": 70, "checkpoints": {"steps": [70, 99]}}, "checkpoints.steps has 99, and the run has 70 steps"),
        ({"checkpoints": {"every": 10**30}}, "checkpoints.every"),
        ({"checkpoints": {"keep": 10**30}}, "checkpoints.keep"),
        ({"checkpoints": {"resume_every": 10**30}}, "checkpoints.resume_every"),
        ({"validation": {"every": 10**30}}, "validation.every"),
        ({"validation": {"log_every": 10**30}}, "validation.log_every"),
        ({"validation": {"attention_sequences": 10_001}}, "validation.attention_sequences"),
    ],
)
def test_a_number_that_no_run_can_follow_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainingParameters.model_validate(fields)


def test_the_first_and_the_last_step_may_be_asked_for() -> None:
    asked = TrainingParameters.model_validate({"steps": 70, "checkpoints": {"steps": [0, 70]}})
    assert asked.checkpoints.steps == [0, 70]
