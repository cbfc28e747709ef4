"""Which models share a tokenizer, and what the refusal names."""

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer
from tests.unit.workers.families import tiny
from tests.unit.workers.loaded import loaded
from workers.models.loaded import LoadedModel
from workers.models.vocabularies import common_vocabulary

TEXT = "the quick brown fox jumps over the lazy dog; the dog sleeps " * 20


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return loaded(tiny("llama"))


def _with(model: LoadedModel, tokenizer: PreTrainedTokenizerFast | None, size: int) -> LoadedModel:
    return replace(model, tokenizer=tokenizer, architecture=replace(model.architecture, vocabulary_size=size))


def _changed(tokenizer: PreTrainedTokenizerFast, change) -> PreTrainedTokenizerFast:
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    change(definition)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(definition)))


def test_models_of_one_tokenizer_share_the_smaller_vocabulary(model: LoadedModel) -> None:
    tokenizers = [bpe_tokenizer(TEXT, 300) for _ in range(2)]
    models = [_with(model, tokenizer, size) for tokenizer, size in zip(tokenizers, (320, 304), strict=True)]
    assert common_vocabulary(*models) == 304
    assert common_vocabulary(*models[::-1]) == 304


def test_the_first_token_that_differs_is_named(model: LoadedModel) -> None:
    tokenizer = bpe_tokenizer(TEXT, 300)

    def swap(definition: dict) -> None:
        names = {number: token for token, number in definition["model"]["vocab"].items()}
        definition["model"]["vocab"] |= {names[40]: 41, names[41]: 40}

    swapped = _with(model, _changed(tokenizer, swap), 300)
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    with pytest.raises(KeyholeError) as failure:
        common_vocabulary(_with(model, tokenizer, 300), swapped)
    assert failure.value.code == ErrorCode.MODEL_UNSUPPORTED
    assert f"token 40 is {names[40]!r} in the model's tokenizer and {names[41]!r}" in failure.value.message


@pytest.mark.parametrize("larger", [0, 1])
def test_a_token_that_only_one_tokenizer_has_is_named(model: LoadedModel, larger: int) -> None:
    tokenizers = [bpe_tokenizer(TEXT, 300) for _ in range(2)]
    size = len(tokenizers[0].get_vocab())
    tokenizers[larger].add_tokens(["<extra>"])
    with pytest.raises(KeyholeError, match=rf"token {size} is .*missing"):
        common_vocabulary(*(_with(model, tokenizer, 320) for tokenizer in tokenizers))


def test_the_first_merge_that_differs_is_named_and_the_other_model_by_its_name(model: LoadedModel) -> None:
    tokenizer = bpe_tokenizer(TEXT, 300)

    def swap(definition: dict) -> None:
        merges = definition["model"]["merges"]
        merges[3], merges[4] = merges[4], merges[3]

    with pytest.raises(KeyholeError, match=r"^Checkpoint 2 does not share .*merge 3 is \[.*in that of checkpoint 2"):
        common_vocabulary(
            _with(model, tokenizer, 300), _with(model, _changed(tokenizer, swap), 300), name="checkpoint 2"
        )


def test_without_a_tokenizer_sizes_must_agree(model: LoadedModel) -> None:
    bare, smaller = _with(model, None, 300), _with(model, None, 299)
    assert common_vocabulary(bare, _with(model, bpe_tokenizer(TEXT, 300), 300)) == 300
    assert common_vocabulary(bare, bare) == 300
    with pytest.raises(KeyholeError, match="the model has no tokenizer to compare, and there are 300 and 299"):
        common_vocabulary(bare, smaller)
    with pytest.raises(KeyholeError, match="the teacher has no tokenizer to compare"):
        common_vocabulary(_with(model, bpe_tokenizer(TEXT, 300), 300), smaller)
