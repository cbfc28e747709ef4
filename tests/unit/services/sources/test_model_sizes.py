"""A config that claims more than the files can hold is refused from the headers alone."""

from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.model_folder import vet_folder
from services.sources.model_sizes import vet_sizes
from tests.unit.services.sources.model_files import CONFIG, safetensors_bytes, write_model


def _refusal(folder: Path, **changes: Any) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        vet_folder(write_model(folder, CONFIG | changes))
    assert refused.value.code == ErrorCode.MODEL_REFUSED
    return refused.value


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vocab_size": 32_000, "hidden_size": 4096}, "131,072,000 numbers; the safetensors files hold 132"),
        ({"vocab_size": 17}, "136 numbers; the safetensors files hold 132"),
        ({"num_hidden_layers": 3}, "3 layers; the safetensors files hold 2 tensors"),
        ({"num_hidden_layers": 20_000}, "at most 1,024"),
        ({"num_experts": 10**9}, "at most 4,096"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000"),
    ],
)
def test_more_than_the_files_hold_is_refused_with_both_numbers(tmp_path: Path, changes: dict, reason: str) -> None:
    assert reason in _refusal(tmp_path, **changes).message


@pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads", "max_position_embeddings", "n_ctx"])
@pytest.mark.parametrize("value", [0, -5, True, "2", 1.5, [1], {}, float("nan"), 10**30])
def test_what_is_no_size_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(KeyholeError, match=name) as refused:
        vet_sizes({name: value})
    assert refused.value.code == ErrorCode.MODEL_REFUSED


@pytest.mark.parametrize("value", ["x", [1], True, float("nan")])
def test_a_text_config_that_is_no_configuration_is_refused(value: object) -> None:
    with pytest.raises(KeyholeError, match="text_config"):
        vet_sizes({"text_config": value})


def test_sizes_left_out_or_null_are_not_judged(tmp_path: Path) -> None:
    vet_folder(write_model(tmp_path, {"model_type": "llama", "num_key_value_heads": None, "head_dim": None}))


def test_a_tensor_that_two_files_hold_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "two.safetensors").write_bytes(safetensors_bytes({"a": [1]}))
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}'
    )
    with pytest.raises(KeyholeError, match="'a' is in two files"):
        vet_folder(folder)
