"""Tokenizers whose ids or normalizers would take the process down are refused before a library reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.tokenizer_file import vet_tokenizer

VOCABULARY = {"a": 0, "b": 1}


def _vet(folder: Path, **content: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": VOCABULARY}} | content))
    vet_tokenizer(path)


@pytest.mark.parametrize("token_id", [2**31 + 5, 2**32 - 1, 70_000, -1, True, 1.0, "1", None, [1]])
def test_an_id_without_any_proportion_to_the_vocabulary_is_refused(tmp_path: Path, token_id: object) -> None:
    for content in (
        {"model": {"type": "BPE", "vocab": VOCABULARY | {"far": token_id}}},
        {"added_tokens": [{"content": "far", "id": token_id}]},
    ):
        with pytest.raises(KeyholeError, match="'far'") as refused:
            _vet(tmp_path, **content)
        assert refused.value.code == ErrorCode.MODEL_REFUSED


def test_gaps_between_ids_and_lists_of_tokens_are_taken(tmp_path: Path) -> None:
    _vet(tmp_path, added_tokens=[{"content": "<|pad|>", "id": 60_000}])
    _vet(tmp_path, model={"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]})


def test_replacements_that_multiply_a_text_are_refused(tmp_path: Path) -> None:
    def twice(pattern: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"String": pattern}, "content": pattern * 2}

    _vet(tmp_path, normalizer={"type": "Sequence", "normalizers": [twice("a")] * 6})
    with pytest.raises(KeyholeError, match="128 times as long"):
        _vet(tmp_path, normalizer={"type": "Sequence", "normalizers": [twice("a")] * 7})


@pytest.mark.parametrize("text", ["", "[]", '{"added_tokens": 5}', '{"added_tokens": ["x"]}', "[" * 100_000])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(KeyholeError) as refused:
        vet_tokenizer(path)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
