"""Data of a training: what cannot be meant is refused when it is submitted."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.contracts.training.training import Data


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ("bpe:256", "at least 257"),
        ("bpe:many", "bpe:SIZE"),
        ("bpe:-3", "bpe:SIZE"),
        ("words", "auto, none, bpe:SIZE"),
        ("checkpoint:4", "export a checkpoint"),
        ("config:gpt-tiny", "hf:, path: or builtin:"),
    ],
)
def test_a_tokenizer_of_no_known_form_is_refused_with_the_forms(tokenizer: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Data(tokenizer=tokenizer)


@pytest.mark.parametrize("tokenizer", ["auto", "none", "bpe:257", "bpe:50000", "hf:org/name@main", "path:some/folder"])
def test_tokenizers_of_every_form_are_taken(tokenizer: str) -> None:
    assert Data(tokenizer=tokenizer).tokenizer == tokenizer


@pytest.mark.parametrize("given", [{"validation_dataset": "nothing"}, {"validation_dataset": "builtin:nothing"}])
def test_a_validation_data_set_of_no_known_form_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="nothing"):
        Data.model_validate(given)
