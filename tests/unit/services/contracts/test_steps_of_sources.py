"""The step that a model source tells, and the run it is of."""

import pytest

from services.contracts.probes.pattern_stability import run_and_step
from services.contracts.sources import step_in
from services.sources.series import is_series


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step1000", 1000),
        ("step-1000", 1000),
        ("step_1000", 1000),
        ("global_step1000", 1000),
        ("step1000-tokens4B", 1000),
        ("Step 7", 7),
        ("checkpoint-500", 500),
        ("run2-step300", 300),
        ("v2-final-40000", 40000),
        ("main", None),
        ("", None),
    ],
)
def test_the_number_behind_step_is_the_step_else_the_last_one(name: str, step: int | None) -> None:
    assert step_in(name) == step


@pytest.mark.parametrize(
    ("source", "run", "step"),
    [
        ("hf:EleutherAI/pythia-70m@step1000", "pythia-70m", 1000),
        ("hf:allenai/OLMo-1B@step1000-tokens4B", "OLMo-1B", 1000),
        ("path:runs/a/step-100", "a", 100),
        ("run:5@1000", "run 5", 1000),
        ("run:5@0", "run 5", 0),
        ("checkpoint:7", "checkpoint 7", 0),
    ],
)
def test_run_and_step_of_a_source(source: str, run: str, step: int) -> None:
    assert run_and_step(source) == (run, step)


@pytest.mark.parametrize(
    ("source", "series"),
    [("run:5", True), ("run:5@last", False), ("checkpoint:7", False), ("path:a/*", True), ("hf:a/b@step*", True)],
)
def test_a_run_is_a_series_and_one_of_its_steps_is_not(source: str, series: bool) -> None:
    assert is_series(source) is series
