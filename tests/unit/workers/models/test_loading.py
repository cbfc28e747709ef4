"""Models load with exactly the weights of their files, or not at all."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, VOCABULARY
from workers.attention import seam
from workers.models import LoadedModel, load_model

TOKENS = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, model_roots=(tmp_path / "models",))


def _saved(family: str, settings: Settings, **options: object) -> tuple[Path, PreTrainedModel]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    folder = settings.model_roots[0] / family
    model.save_pretrained(folder, **options)
    return folder, model


def _load(folder: Path, settings: Settings, dtype: str = "float32") -> LoadedModel:
    return load_model(f"path:{folder}", device="cpu", dtype=dtype, settings=settings)


def _refusal(folder: Path, settings: Settings) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        _load(folder, settings)
    return refused.value


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_loads_with_the_same_logits_frozen_and_through_the_seam(family: str, settings: Settings) -> None:
    folder, model = _saved(family, settings)
    loaded = _load(folder, settings)
    with torch.no_grad():
        expected = model(TOKENS).logits
        assert torch.allclose(loaded.model(TOKENS, use_cache=False).logits, expected, atol=1e-4)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.model.config._attn_implementation == seam.IMPLEMENTATION
    assert loaded.parity["logit_difference_relative"] <= loaded.parity["tolerance_relative"]
    assert loaded.tokenizer is None
    architecture = loaded.architecture
    assert (architecture.layers, architecture.heads, architecture.vocabulary_size) == (LAYERS, HEADS, VOCABULARY)
    assert architecture.n_ctx == 128
    assert architecture.parameters == model.num_parameters()


class _Shapes:
    """An observer that keeps the shapes of the last layer it saw."""

    def forward(self, attention) -> None:
        self.query, self.key = attention.query.shape, attention.key.shape

    def backward(self, attention, delta) -> None:
        raise AssertionError("no backward pass here")


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_and_widths_are_those_the_attention_gets(family: str, settings: Settings) -> None:
    loaded = _load(_saved(family, settings)[0], settings)
    shapes = _Shapes()
    with torch.no_grad(), seam.observing(loaded.model, [shapes]):
        loaded.model(TOKENS, use_cache=False)
    architecture = loaded.architecture
    assert shapes.query[1::2] == (architecture.heads, architecture.d_head)
    assert shapes.key[1::2] == (architecture.kv_heads, architecture.d_head)


def test_bfloat16_is_loaded_as_asked(settings: Settings) -> None:
    folder, model = _saved("llama", settings)
    loaded = _load(folder, settings, "bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    weight = loaded.model.get_input_embeddings().weight
    assert torch.equal(weight, model.get_input_embeddings().weight.to(torch.bfloat16))


def test_a_sharded_model_is_the_same_as_a_whole_one(settings: Settings) -> None:
    folder, model = _saved("llama", settings, max_shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.allclose(_load(folder, settings).model(TOKENS).logits, model(TOKENS).logits, atol=1e-5)


def _rewrite(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_missing_weight_is_refused_and_named(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    _rewrite(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.q_proj.weight"))
    refusal = _refusal(folder, settings)
    assert refusal.code == ErrorCode.MODEL_REFUSED
    assert "lacks 1 weights: model.layers.1.self_attn.q_proj.weight" in refusal.message


def test_a_weight_too_many_is_refused_and_named(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    _rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    assert "q_norm" in _refusal(folder, settings).message


def test_a_weight_of_another_shape_is_refused_and_named(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    _rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
    refusal = _refusal(folder, settings)
    assert refusal.code == ErrorCode.MODEL_REFUSED
    assert "model.norm.weight" in refusal.message


def test_buffers_of_older_releases_do_no_harm(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    _rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    _load(folder, settings)


def test_an_adapter_beside_the_model_is_not_loaded(settings: Settings) -> None:
    folder, model = _saved("llama", settings)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/x"}))
    with torch.no_grad():
        assert torch.allclose(_load(folder, settings).model(TOKENS).logits, model(TOKENS).logits, atol=1e-5)


def test_a_config_that_does_not_fit_is_refused_as_such(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": "many"}))
    assert _refusal(folder, settings).code == ErrorCode.MODEL_REFUSED


def test_an_architecture_that_hides_its_attention_is_refused_before_loading(settings: Settings) -> None:
    folder, _ = _saved("llama", settings)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "falcon"}))
    assert _refusal(folder, settings).code == ErrorCode.MODEL_UNSUPPORTED
