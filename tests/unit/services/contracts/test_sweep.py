"""Which members a sweep has, and what is refused."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from services.contracts.training.sweep import Sweep

RATES = {"optimizer.learning_rate": [0.001, 0.003]}


def sweep(**fields: Any) -> Sweep:
    return Sweep.model_validate(fields)


def test_a_grid_is_every_setting_of_every_variant_for_one_seed_after_another():
    members = list(
        sweep(
            axes={**RATES, "optimizer.weight_decay": [0.0, 0.1]}, variants=["control", "natq"], seeds=[3, 1]
        ).members()
    )
    assert len(members) == 16
    assert [member.seed for member in members] == [3] * 8 + [1] * 8
    assert [(member.variant, *member.setting.values()) for member in members[:4]] == [
        ("control", 0.001, 0.0),
        ("natq", 0.001, 0.0),
        ("control", 0.001, 0.1),
        ("natq", 0.001, 0.1),
    ]
    assert members[1].parameters == {
        "variants": [{"name": "natq"}],
        "seed": 3,
        "optimizer": {"learning_rate": 0.001, "weight_decay": 0.0},
    }
    assert members[1].label == "natq, learning_rate 0.001, weight_decay 0.0"


def test_values_are_placed_among_what_all_members_share():
    members = list(
        sweep(parameters={"optimizer": "muon", "schedule": {"shape": "linear"}, "steps": 7}, axes=RATES).members()
    )
    assert [member.parameters["optimizer"] for member in members] == [
        {"name": "muon", "learning_rate": 0.001},
        {"name": "muon", "learning_rate": 0.003},
    ]
    assert all(member.parameters["schedule"] == {"shape": "linear"} for member in members)
    nested = sweep(parameters={"schedule": {"shape": "linear"}}, axes={"schedule.warmup_steps": [1, 2]})
    assert [each.parameters["schedule"] for each in nested.members()] == [
        {"shape": "linear", "warmup_steps": 1},
        {"shape": "linear", "warmup_steps": 2},
    ]
    assert nested.parameters == {"schedule": {"shape": "linear"}}, "what all share is left as it was"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("control", []),
        ([], []),
        ("natq", ["natq"]),
        ("natq+qk_norm", ["natq", "qk_norm"]),
        ({"name": "natq", "damping": 0.5}, ["natq"]),
        (["natq", {"name": "qk_norm", "scale": 0.12}], ["natq", "qk_norm"]),
    ],
)
def test_variants_are_given_by_name_or_with_options(given: Any, names: list[str]):
    (member,) = sweep(variants=[given]).members()
    assert [variant["name"] for variant in member.parameters["variants"]] == names


def test_variants_that_differ_in_their_options_have_labels_of_their_own():
    found = sweep(variants=["natq", {"name": "natq", "damping": 0.5}, "control"])
    assert [member.variant for member in found.members()] == ["natq", "natq (damping 0.5)", "control"]


def test_random_settings_are_drawn_from_the_ranges_and_the_same_for_each_variant():
    fields = {
        "axes": {
            "optimizer.learning_rate": {"low": 1e-4, "high": 1e-1},
            "schedule.warmup_steps": {"low": 0, "high": 50, "scale": "linear", "whole": True},
            "clip": [None, 1.0],
        },
        "variants": ["control", "natq"],
        "search": "random",
        "samples": 200,
    }
    found = sweep(**fields)
    settings = found.settings()
    assert settings == sweep(**fields).settings(), "the same seed draws the same"
    assert settings != sweep(**fields, search_seed=1).settings()
    rates = [setting["optimizer.learning_rate"] for setting in settings]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    below = sum(rate < math.sqrt(1e-5) for rate in rates)
    assert 70 < below < 130  # half of 200 on a logarithmic scale; four standard deviations are 28
    assert {type(setting["schedule.warmup_steps"]) for setting in settings} == {int}
    by_variant: dict[str, list[Any]] = {}
    for member in found.members():
        by_variant.setdefault(member.variant, []).append(member.setting)
    assert by_variant["control"] == by_variant["natq"] == settings


def test_as_many_random_settings_as_the_lists_have_are_all_of_them():
    found = sweep(axes={"steps": [1, 2, 3], "batch": [4, 8]}, search="random", samples=6).settings()
    assert sorted(tuple(setting.values()) for setting in found) == [(1, 4), (1, 8), (2, 4), (2, 8), (3, 4), (3, 8)]


def test_a_sweep_survives_its_storing():
    found = sweep(
        axes={"optimizer.learning_rate": {"low": 1e-4, "high": 1e-1}},
        search="random",
        samples=2,
        variants=["control", {"name": "natq", "damping": 0.5}],
        early_stopping={"after_steps": 50, "worse_by_nats": 0.1},
    )
    stored = json.loads(json.dumps(found.model_dump(mode="json")))
    assert list(Sweep.model_validate(stored).members()) == list(found.members())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"axes": {"seed": [1, 2]}}, "seed is no axis: give seeds"),
        ({"axes": {"variants": [["natq"]]}}, "give variants"),
        ({"axes": {"optimizer": ["adamw"], **RATES}}, "optimizer.learning_rate is part of the axis optimizer"),
        ({"axes": {**RATES, "optimizer": ["adamw"]}}, "optimizer.learning_rate is part of the axis optimizer"),
        ({"parameters": {"variants": ["natq"]}}, "parameters has variants"),
        ({"axes": {"optimizer.learning_rate": [0.1, 0.1]}}, "a value twice"),
        ({"seeds": [1, 1]}, "seeds has a value twice"),
        ({"variants": ["control", []]}, "the variant control is given twice"),
        ({"variants": ["natq", {"name": "natq", "damping": 0.1}]}, "given twice"),
        ({"variants": ["sigmoid+natq"]}, "softmax row"),
        ({"variants": ["natc"]}, "natc"),
        ({"axes": {"a": list(range(40)), "b": list(range(40))}}, "1600 members"),
        ({"axes": {"clip": {"low": 1, "high": 2}}}, "search random"),
        ({"axes": RATES, "samples": 2}, "samples is for search random"),
        ({"axes": RATES, "search": "random"}, "needs axes, and samples"),
        ({"axes": RATES, "search": "random", "samples": 3}, "only 2 settings"),
        ({"axes": {"clip": {"low": 0, "high": 2}}, "search": "random", "samples": 2}, "begins above 0"),
        ({"axes": {"clip": {"low": 3, "high": 2}}, "search": "random", "samples": 2}, "less than high"),
        ({"early_stopping": {"after_steps": [5]}}, "worse_by_nats or keep_fraction"),
        ({"early_stopping": {"after_steps": [], "keep_fraction": 0.5}}, "after_steps"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(fields: dict[str, Any], told: str):
    with pytest.raises(ValidationError) as refused:
        sweep(**fields)
    assert told in str(refused.value)


def test_ranges_too_narrow_for_the_samples_are_refused_when_drawn():
    narrow = sweep(axes={"schedule.warmup_steps": {"low": 1, "high": 3, "whole": True}}, search="random", samples=4)
    with pytest.raises(ValueError, match="fewer than 4 different settings"):
        narrow.settings()
