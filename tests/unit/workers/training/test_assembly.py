"""A run is put together from what it was submitted with, or refused."""

from pathlib import Path

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.contracts.training.training import TrainingParameters
from services.sources import resolve_dataset, resolve_model
from services.sources.tokenizers import resolve_tokenizer
from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer
from workers.training.assembly import Assembled, Order, assembled

MODEL = "config:gpt-tiny?layers=2&width=32&heads=2&mlp=64&context=32&vocabulary=400"
TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text(TEXT * 100)
    (tmp_path / "data" / "held.txt").write_text(TEXT * 50)
    bpe_tokenizer(TEXT, 300).save_pretrained(tmp_path / "models" / "theirs")
    return Settings(home=tmp_path)


def order(settings: Settings) -> Order:
    data = {"tokenizer": "path:theirs", "validation_dataset": "file:held.txt", "validation_sequences": 2}
    return Order(
        str(parse_model_source(MODEL)),
        resolve_model(MODEL, settings).identity,
        "file:text.txt",
        resolve_dataset("file:text.txt", settings).identity,
        TrainingParameters.model_validate({"steps": 1, "length": 16, "data": data}),
        pinned={
            "data.tokenizer": resolve_tokenizer("path:theirs", settings).identity,
            "data.validation_dataset": resolve_dataset("file:held.txt", settings).identity,
        },
    )


def made(order: Order, settings: Settings) -> Assembled:
    return assembled(order, None, "cpu", settings)


def test_what_is_as_it_was_submitted_is_taken(settings: Settings) -> None:
    asked = order(settings)
    found = made(asked, settings)
    assert found.trainer.data.validation_identity == asked.pinned["data.validation_dataset"]
    assert found.tokenizer is not None


def test_a_validation_data_set_that_has_changed_is_refused(settings: Settings) -> None:
    asked = order(settings)
    (settings.home / "data" / "held.txt").write_text(TEXT * 60)
    with pytest.raises(KeyholeError, match=r"validation data set at file:held\.txt is now") as refused:
        made(asked, settings)
    assert refused.value.code is ErrorCode.DATASET_CHANGED


def test_a_tokenizer_that_has_changed_is_refused(settings: Settings) -> None:
    asked = order(settings)
    bpe_tokenizer(TEXT, 262).save_pretrained(settings.home / "models" / "theirs")
    with pytest.raises(KeyholeError, match="tokenizer of path:theirs is now") as refused:
        made(asked, settings)
    assert refused.value.code is ErrorCode.MODEL_CHANGED
