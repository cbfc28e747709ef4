"""Axes, variants and seeds of a sweep as a command line has them."""

import pytest
from typer import BadParameter

from services.cli.axes import parse_axes, parse_variants, parse_whole


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,3e-3", [0.001, 0.003]),
        ("0, 0.1", [0, 0.1]),
        ("cosine,linear", ["cosine", "linear"]),
        ("null,1.0", [None, 1.0]),
        ('[{"shape": "cosine"}, {"shape": "linear"}]', [{"shape": "cosine"}, {"shape": "linear"}]),
        ("1e-4..1e-2", {"low": 0.0001, "high": 0.01, "scale": "log", "whole": False}),
        ("linear:0..100", {"low": 0, "high": 100, "scale": "linear", "whole": True}),
        ("linear:-1.5..2", {"low": -1.5, "high": 2, "scale": "linear", "whole": False}),
    ],
)
def test_values_are_json_or_text_and_two_dots_are_a_range(text: str, values: object):
    assert parse_axes([f"optimizer.learning_rate={text}"]) == {"optimizer.learning_rate": values}


@pytest.mark.parametrize(("axes", "told"), [(["a"], "name=value"), (["a="], "name=value"), (["a=1", "a=2"], "twice")])
def test_what_is_no_axis_is_refused(axes: list[str], told: str):
    with pytest.raises(BadParameter, match=told):
        parse_axes(axes)


def test_variants_are_names_or_json_with_options():
    given = ["control", " natq+qk_norm ", '{"name": "natq", "damping": 0.5}', '["natq"]']
    assert parse_variants(given) == ["control", "natq+qk_norm", {"name": "natq", "damping": 0.5}, ["natq"]]


def test_seeds_are_whole_numbers():
    assert parse_whole("0,1, 2", "--seed") == [0, 1, 2]
    with pytest.raises(BadParameter, match="0,1,2"):
        parse_whole("0,one", "--seed")
