"""Files that are not exactly the model's are refused before memory is taken for a weight."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from services.contracts.architectures import SUPPORTED
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources.safetensors_header import TensorEntry, read_header
from tests.unit.workers.families import FAMILIES
from tests.unit.workers.models.test_architectures import small
from workers.models import load_model
from workers.models.outline import require_fit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(FAMILIES["llama"]()).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def _configured(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _rewritten(folder: Path, **changes: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert changes.keys() <= tensors.keys()
    save_file(tensors | changes, path, metadata={"format": "pt"})


def _load_refusal(folder: Path) -> KeyholeError:
    settings = Settings(home=folder.parent, model_roots=(folder.parent,))
    with pytest.raises(KeyholeError) as refused:
        load_model(f"path:{folder}", device="cpu", dtype="float32", settings=settings)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
    return refused.value


@pytest.mark.parametrize("model_type", sorted(SUPPORTED))
def test_the_files_of_every_supported_model_fit_and_with_one_less_do_not(model_type: str, tmp_path: Path) -> None:
    """save_pretrained writes other names and other tensors than the model has: experts apart, for example."""
    small(model_type).save_pretrained(tmp_path)
    tensors = read_header(tmp_path / "model.safetensors")
    require_fit(tmp_path, tensors, torch.float32)
    for name in (min(tensors), max(tensors)):
        with pytest.raises((KeyholeError, RuntimeError)):
            require_fit(tmp_path, {other: entry for other, entry in tensors.items() if other != name}, torch.float32)


def test_a_config_whose_weights_would_take_27_gigabytes_is_refused_without_them(folder: Path) -> None:
    tensors = read_header(folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')  # all sizes by default: 7 billion parameters
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KeyholeError, match="lacks 270 weights: model") as refused:
        require_fit(folder, tensors, torch.float32)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_tables_that_a_model_computes_for_itself_are_bounded_too(tmp_path: Path) -> None:
    small("gptj").save_pretrained(tmp_path)
    _configured(tmp_path, n_positions=1 << 26, rotary_dim=32)
    with pytest.raises(KeyholeError, match="computes tables of 8,589,934,"):
        require_fit(tmp_path, read_header(tmp_path / "model.safetensors"), torch.float32)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_no_number_is_refused_and_named(folder: Path, value: float) -> None:
    name = "model.layers.1.self_attn.v_proj.weight"
    weight = load_file(folder / "model.safetensors")[name]
    weight[-1, -1] = value
    _rewritten(folder, **{name: weight})
    assert f"1 weights are not finite in float32: {name}" in _load_refusal(folder).message


def test_weights_of_whole_numbers_are_refused_and_named(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    _rewritten(folder, **{name: torch.ones(32, 32, dtype=torch.int32)})
    assert f"1 weights are whole numbers: {name} (I32)" in _load_refusal(folder).message


def test_whole_numbers_in_a_mask_of_an_older_release_do_no_harm(folder: Path) -> None:
    tensors = read_header(folder / "model.safetensors")
    masks = {f"model.layers.0.attn.{name}": TensorEntry("BOOL", (1, 1, 8, 8)) for name in ("bias", "masked_bias")}
    require_fit(folder, tensors | masks, torch.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {"pad_token_id": 9999},
        {"hidden_act": "nonexistent"},
        {"rope_parameters": "x"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}},
        {"rms_norm_eps": -1e30},
        {"text_config": {"a": 1}},
        {"head_dim": 1 << 30},
    ],
)
def test_a_config_that_breaks_the_model_is_the_models_fault(folder: Path, changes: dict[str, Any]) -> None:
    _configured(folder, **changes)
    _load_refusal(folder)


def test_what_a_forward_pass_returns_is_not_the_configs_to_say(folder: Path) -> None:
    _configured(folder, return_dict=False, output_attentions=True, num_labels=10**9)
    settings = Settings(home=folder.parent, model_roots=(folder.parent,))
    loaded = load_model(f"path:{folder}", device="cpu", dtype="float32", settings=settings)
    assert loaded.model(torch.tensor([[1, 2]]), use_cache=False).logits.shape == (1, 2, 61)
