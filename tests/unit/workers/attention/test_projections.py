"""q, k, v and the module's output rebuilt from its input and the matrices, on every supported architecture."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from services.contracts.architectures import SUPPORTED
from tests.unit.workers.families import FAMILIES, tiny, tokens
from tests.unit.workers.models.test_architectures import LATENT, small
from workers.attention import seam
from workers.attention.inputs import LayerAttention
from workers.attention.projections import Projections, projections

LENGTH = 20
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}  # float32 products of 32 terms up to about 10
# layers of another make than the default of their architecture
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt_bigcode": {"multi_query": False},
    "cohere": {"use_qk_norm": True},
    "stablelm": {"qk_layernorm": True},
    "phi": {"qk_layernorm": True},
    "persimmon": {"qk_layernorm": False},
    "olmo": {"clip_qkv": 0.5},
    "olmoe": {"clip_qkv": 0.5},
    "opt": {"enable_bias": False},
    "smollm3": {"no_rope_layers": [1, 0]},
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v2": {"q_lora_rank": None},
}


class _Keep:
    def __init__(self) -> None:
        self.seen: list[LayerAttention] = []
        self.after: list[Tensor] = []

    def forward(self, attention: LayerAttention) -> None:
        self.seen.append(attention)

    def backward(self, attention: LayerAttention, delta: Tensor) -> None:
        raise AssertionError("no backward pass here")


def _observe(model: PreTrainedModel) -> _Keep:
    """One pass of several sequences, so that position 0, which no rotary embedding turns, is seen with many inputs."""
    kept = _Keep()
    seam.attach(model)
    with torch.no_grad(), seam.observing(model, [kept], hidden=True):
        handles = [
            module.register_forward_hook(lambda module, inputs, output: kept.after.append(output[0]))
            for module in seam._attention_modules(model)
            if type(module).__name__.endswith("Attention")
        ]
        model(tokens(8, LENGTH), use_cache=False)
    for handle in handles:
        handle.remove()
    return kept


def _variant(model_type: str) -> PreTrainedModel:
    """As ``small`` gives it, with the layers of VARIANTS."""
    made = small(model_type).config
    assert model_type in CONFIG_MAPPING
    for name, value in VARIANTS[model_type].items():
        setattr(made, name, value)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**made.to_dict())).eval()


def _randomized(model: PreTrainedModel) -> PreTrainedModel:
    """Biases and norms moved off their initial zeros and ones."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def _of(attention: LayerAttention) -> Projections:
    return projections(attention.module, attention.query.shape[1], attention.key.shape[1])


def _after_steps(product: Tensor, norm: nn.Module | None, attention: LayerAttention, then: tuple) -> Tensor:
    """The product with all steps but the rotary one, by the module's own norm; [batch, head, position, d]."""
    config: Any = attention.module.config
    if "norm" in then:
        assert norm is not None
        by_position = product.transpose(1, 2)
        if config.model_type in ("olmo2", "olmo3", "olmoe"):
            product = norm(by_position.flatten(2)).view(by_position.shape).transpose(1, 2)
        elif config.model_type == "stablelm":
            product = norm(product)
        else:
            product = norm(by_position).transpose(1, 2)
    return product.clamp(-config.clip_qkv, config.clip_qkv) if "clip" in then else product


def _norm(attention: LayerAttention, letter: str) -> nn.Module | None:
    return getattr(attention.module, f"{letter}_norm", None) or getattr(attention.module, f"{letter}_layernorm", None)


def _check(model: PreTrainedModel) -> list[Projections]:
    kept = _observe(model)
    rotary = next((m for m in model.modules() if hasattr(m, "attention_scaling")), None)
    all_found = []
    for attention, after in zip(kept.seen, kept.after, strict=True):
        assert attention.hidden is not None
        found = _of(attention)
        all_found.append(found)
        for letter, map_, seen in (("q", found.query, attention.query), ("k", found.key, attention.key)):
            assert map_ is not None, found.reason
            rebuilt = _after_steps(map_(attention.hidden), _norm(attention, letter), attention, map_.then)
            if "rotary" in map_.then:
                factor = 1.0 if rotary is None else float(rotary.attention_scaling)  # type: ignore[arg-type]  # a float
                torch.testing.assert_close(rebuilt[:, :, 0] * factor, seen[:, :, 0], **CLOSE)
                assert not torch.allclose(rebuilt[:, :, 1:] * factor, seen[:, :, 1:], rtol=1e-2, atol=1e-2)
            else:
                torch.testing.assert_close(rebuilt, seen, **CLOSE)
        assert found.value is not None and found.output is not None
        value = _after_steps(found.value(attention.hidden), None, attention, found.value.then)
        torch.testing.assert_close(value, attention.value, **CLOSE)
        _check_output(found, attention, after)
    return all_found


def _check_output(found: Projections, attention: LayerAttention, after: Tensor) -> None:
    assert found.output is not None
    out = torch.einsum("bthd,hdm->btm", attention.output, found.output.weight)
    if found.output.bias is not None:
        out = out + found.output.bias
    torch.testing.assert_close(out, after, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_query_key_value_and_output_of_the_families_are_rebuilt(family: str) -> None:
    _check(tiny(family))


@pytest.mark.parametrize("model_type", sorted(SUPPORTED - set(LATENT)))
def test_query_key_value_and_output_of_every_supported_architecture_are_rebuilt(model_type: str) -> None:
    _check(_randomized(small(model_type)))


@pytest.mark.parametrize("model_type", sorted(set(VARIANTS) - set(LATENT)))
def test_layers_of_another_make_are_told_apart(model_type: str) -> None:
    found = [projection.query.then for projection in _check(_randomized(_variant(model_type))) if projection.query]
    expected = {
        "gpt_bigcode": [(), ()],
        "cohere": [("norm", "rotary")] * 2,
        "stablelm": [("norm", "rotary")] * 2,
        "phi": [("norm", "rotary")] * 2,
        "persimmon": [("rotary",)] * 2,
        "olmo": [("clip", "rotary")] * 2,
        "olmoe": [("norm", "clip", "rotary")] * 2,
        "opt": [(), ()],
        "smollm3": [("rotary",), ()],
        "cohere2": [("rotary",), ()],
        "exaone4": [("norm", "rotary"), ("norm",)],
    }
    assert found == expected[model_type]


@pytest.mark.parametrize("model_type", LATENT)
def test_latent_attention_has_an_output_projection_and_a_reason_for_the_rest(model_type: str) -> None:
    kept = _observe(_randomized(small(model_type)))
    for attention, after in zip(kept.seen, kept.after, strict=True):
        found = _of(attention)
        assert (found.query, found.key, found.value) == (None, None, None)
        assert "latent" in found.reason
        _check_output(found, attention, after)


def test_a_layout_nobody_knows_gives_no_matrices() -> None:
    attention = _observe(tiny("llama")).seen[0]
    stranger = nn.Module()
    stranger.config = attention.module.config  # type: ignore[assignment]  # as attention modules carry theirs
    found = _of(replace(attention, module=stranger))
    assert (found.query, found.output) == (None, None)
    assert "layout" in found.reason
