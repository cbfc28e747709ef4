"""``--set name=value``."""

import pytest
from typer import BadParameter

from services.cli.parameters import parse


def test_values_are_json_where_they_parse_and_text_where_not():
    settings = ["a=1", "b=1.5", "c=true", "d=null", "e=own_token", 'f="7"', "g=[1, 2]", "h=a=b", "i="]
    assert parse(settings) == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": None,
        "e": "own_token",
        "f": "7",
        "g": [1, 2],
        "h": "a=b",
        "i": "",
    }


def test_dotted_names_make_nested_parameters():
    assert parse(["queries.step=8", "queries.start=0", "length=64"]) == {
        "queries": {"step": 8, "start": 0},
        "length": 64,
    }


@pytest.mark.parametrize(
    "settings", [["novalue"], ["=1"], ["a..b=1"], [".a=1"], ["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=2", "a=1"]]
)
def test_what_is_no_setting_is_a_usage_error(settings):
    with pytest.raises(BadParameter):
        parse(settings)
