"""Which model folders are taken, and that the hostile ones are refused before anything is loaded."""

import json
from pathlib import Path

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.model_folder import vet_folder
from tests.unit.services.sources.model_files import CONFIG, safetensors_bytes, write_model


def _refusal(folder: Path) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        vet_folder(folder)
    return refused.value


def _shard(folder: Path, weight_map: object) -> Path:
    write_model(folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_only_known_files_are_taken_and_what_else_lies_there_is_not(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    for name in ("modeling_evil.py", "pytorch_model.bin", "adapter_config.json", "generation_config.json"):
        (folder / name).write_text("{}")
    assert set(vet_folder(folder).files) == {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "last.ckpt", "tf_model.h5"])
def test_weights_only_as_pickle_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / name)
    refusal = _refusal(folder)
    assert refusal.code == ErrorCode.MODEL_REFUSED
    assert name in refusal.message
    assert "safe_serialization" in refusal.hint


def test_a_folder_without_weights_config_or_existence_says_which(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "nowhere").code == ErrorCode.MODEL_NOT_FOUND
    assert "config.json" in _refusal(tmp_path).message
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in _refusal(folder).message


def test_a_sharded_model_is_taken_with_its_index(tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    vetted = vet_folder(_shard(tmp_path / "m", {"a": name, "b": name}))
    assert vetted.weights == (name,)
    assert "model.safetensors.index.json" in vetted.files


@pytest.mark.parametrize(
    "file",
    [
        "../other/model.safetensors",
        "/etc/model.safetensors",
        "sub/x.safetensors",
        "weights.bin",
        7,
        "..\\x.safetensors",
    ],
)
def test_an_index_that_names_anything_but_a_safetensors_file_beside_it_is_refused(tmp_path: Path, file: object) -> None:
    write_model(tmp_path / "other")
    refusal = _refusal(_shard(tmp_path / "m", {"a": file}))
    assert refusal.code == ErrorCode.MODEL_REFUSED
    assert repr(file) in refusal.message


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "model-2.safetensors" in _refusal(_shard(tmp_path / "m", {"a": "model-2.safetensors"})).message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_refused_unless_it_stays_below_a_root(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "m")
    outside = tmp_path / "blobs"
    outside.mkdir()
    (folder / name).rename(outside / name)
    (folder / name).symlink_to(outside / name)
    assert "leads out" in _refusal(folder).message
    assert name in vet_folder(folder, [tmp_path]).files  # as in the hub's cache


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bloom"}, "AttentionInterface"),
        ({"model_type": "mamba"}, "outside attention"),
        ({"model_type": "t5"}, "causal"),
        ({"model_type": "something_new"}, "not among those"),
        ({"model_type": None}, "no model_type"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_an_unsupported_architecture_is_refused_with_the_reason(tmp_path: Path, config: dict, reason: str) -> None:
    refusal = _refusal(write_model(tmp_path / "m", CONFIG | config))
    assert refusal.code == ErrorCode.MODEL_UNSUPPORTED
    assert reason in refusal.message


def test_a_tokenizer_config_that_names_code_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tok.Evil", null]}}')
    assert _refusal(folder).code == ErrorCode.MODEL_REFUSED


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"a": [2]})[:-1])
    assert "cut short" in _refusal(folder).hint
