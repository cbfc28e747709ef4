"""``config:NAME?option=value``: each option once."""

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.sources import parse_model_source


def test_an_option_given_twice_is_refused_with_both_values() -> None:
    with pytest.raises(KeyholeError) as refused:
        parse_model_source("config:gpt-tiny?layers=2&width=64&layers=3")
    assert refused.value.code is ErrorCode.INVALID_SOURCE
    assert "layers is given twice, as 2 and 3" in refused.value.hint


def test_options_given_once_are_kept_where_they_change_something() -> None:
    assert str(parse_model_source("config:gpt-tiny?layers=2&width=128")) == "config:gpt-tiny?layers=2"
