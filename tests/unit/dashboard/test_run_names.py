"""What runs are called, in what they differ, and which of them are alike in all but their seed."""

from datetime import UTC, datetime
from typing import Any

from dashboard.queries.runs import Run
from dashboard.run_names import differences, groups, picker_names, settings, titles
from services.contracts.training.training import TrainingParameters


def run(number: int, *, name: str = "a run", model: str = "config:gpt-tiny", **parameters: Any) -> Run:
    asked = TrainingParameters.model_validate(parameters)
    return Run(
        run_id=number,
        name=name,
        job_id=number,
        state="succeeded",
        phase="done",
        variant=asked.variant,
        seed=asked.seed,
        steps=asked.steps,
        steps_done=asked.steps,
        model=model,
        dataset="builtin:python-docs",
        optimizer=asked.optimizer.name,
        learning_rate=asked.optimizer.learning_rate,
        weight_decay=asked.optimizer.weight_decay,
        last_validation_step=None,
        last_validation_loss_nats=None,
        best_validation_step=None,
        best_validation_loss_nats=None,
        last_validation_bits_per_byte=None,
        submitted_by=None,
        created_at=datetime(2026, 9, 4, tzinfo=UTC),
        duration_s=None,
        error_message=None,
        parameters=asked.model_dump(mode="json"),
        sequences_per_step=asked.sequences_per_step,
        length=asked.length,
        tokens_per_s=None,
    )


def test_settings_name_the_options_of_variants_by_their_variant() -> None:
    told = settings(run(1, variants=["natq"], optimizer={"learning_rate": 3e-4}))
    assert (told["natq.damping"], told["natq.fallback"], told["optimizer.learning_rate"]) == ("0.1", "yes", "0.0003")
    assert "variants" not in told


def test_what_one_variant_has_and_the_other_lacks_is_said_by_the_variant_alone() -> None:
    runs = [run(1), run(2, variants=["natq"]), run(3, variants=["natq"], seed=4)]
    assert differences(runs) == {"Variant": ["control", "natq", "natq"], "seed": ["0", "0", "4"]}
    damped = [run(1), run(2, variants=["natq"]), run(3, variants=[{"name": "natq", "damping": 0.5}])]
    assert differences(damped)["natq.damping"] == ["–", "0.1", "0.5"]


def test_titles_say_variant_seed_and_what_else_differs() -> None:
    runs = [run(1, optimizer={"learning_rate": 1e-3}), run(2, optimizer={"learning_rate": 2e-3}, batch=4)]
    assert titles(runs) == {1: "run 1 · control · seed 0 · lr 0.001", 2: "run 2 · control · seed 0 · lr 0.002"}


def test_runs_are_alike_that_differ_in_seed_name_or_how_they_are_computed() -> None:
    runs = [
        run(1, name="x"),
        run(2, variants=["natq"]),
        run(3, name="y", seed=1, batch=4, checkpoints={"every": 5}),
        run(4, seed=1, steps=400),
    ]
    found = groups(runs)
    assert [group.numbers for group in found] == [[1, 3], [2], [4]]
    assert [group.label for group in found] == ["control · steps 500", "natq · steps 500", "control · steps 400"]
    assert [group.variant for group in found] == ["control", "natq", "control"]


def test_a_picker_tells_runs_apart_by_number_name_and_seed() -> None:
    names = picker_names([run(1, name="long\nname"), run(12, name="other", seed=3)])
    assert names[1].startswith("1 · long name · control · seed 0 · lr 0.001")
    assert names[12].startswith("12 · other · control · seed 3")
