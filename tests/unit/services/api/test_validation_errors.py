"""What a person is told of a refused body: where, what, and the names that are valid there."""

import math
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from services.api.validation_errors import described
from services.contracts.jobs import JobCreate
from services.contracts.sweeps import SweepCreate

SOURCES = {"model": "config:gpt-tiny", "dataset": "builtin:python-docs"}


def refused(body_type: Any, **fields: Any) -> dict[str, Any]:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(body_type).validate_python(SOURCES | fields)
    (entry,) = described([each | {"loc": ("body", *each["loc"])} for each in error.value.errors()])
    return entry


@pytest.mark.parametrize(
    ("parameters", "where", "value", "valid"),
    [
        ({"optimizer": "lion"}, "parameters.optimizer", "'lion'", "adamw, sgd, muon"),
        ({"variants": ["natc"]}, "parameters.variants.0", "'natc'", "Did you mean natq?"),
    ],
)
def test_an_unknown_name_within_the_parameters_is_told_with_its_place(parameters, where, value, valid):
    entry = refused(JobCreate, kind="training", parameters=parameters)
    assert entry["where"] == where
    assert value in entry["message"]
    assert valid in entry["hint"]


@pytest.mark.parametrize(
    ("axes", "where"),
    [
        ({"clip": 3}, "axes.clip"),
        ({"clip": []}, "axes.clip"),
        ({"clip": {"low": 3}}, "axes.clip.high"),
        ({"clip": {"low": 3, "high": 2}}, "axes.clip"),
        ({"clip": {"low": 1, "high": 2, "[range]": 2}}, "axes.clip.[range]"),
        ({"CLIP": [1]}, "axes.CLIP"),
    ],
)
def test_what_is_wrong_with_an_axis_is_told_once_and_at_the_axis(axes, where):
    assert refused(SweepCreate, axes=axes)["where"] == where


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_told_as_such_and_not_as_out_of_bounds(value):
    entry = refused(JobCreate, kind="training", parameters={"clip": value})
    assert entry["where"] == "parameters.clip"
    assert entry["message"] == f"A finite number is expected, not {value}."


def test_control_characters_in_a_name_are_told_in_words():
    entry = refused(SweepCreate, name="a\x1b[31m")
    assert (entry["where"], entry["message"]) == ("name", "The text has control characters.")
    assert "^" not in entry["message"] + entry["hint"]
