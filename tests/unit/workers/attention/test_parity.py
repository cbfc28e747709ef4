"""Parity of logits: held by every family, and caught where it is broken."""

import pytest
import torch
import transformers

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers.families import FAMILIES, tiny, tokens
from workers.attention import parity, seam


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_through_the_seam_are_the_models_own(family: str, dtype: torch.dtype) -> None:
    model = tiny(family, dtype=dtype)
    found = parity.check(model, tokens(2, 23))
    assert found["reference"] == "eager"
    assert found["logit_difference_relative"] <= found["tolerance_relative"]
    assert model.config._attn_implementation == seam.IMPLEMENTATION


class OtherScale(transformers.LlamaForCausalLM):
    """A model that scales its scores by another factor when its attention is replaced."""

    factor = 1.0

    def forward(self, *arguments, **named):
        for layer in self.model.layers:
            own = self.config._attn_implementation == "eager"
            layer.self_attn.scaling = layer.self_attn.head_dim**-0.5 * (1.0 if own else self.factor)
        return super().forward(*arguments, **named)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.001), (torch.bfloat16, 1.5)])
def test_a_wrong_scale_of_scores_is_caught(dtype: torch.dtype, factor: float) -> None:
    model = OtherScale(FAMILIES["llama"]()).to(dtype).eval()
    model.load_state_dict(tiny("llama").state_dict())
    model.factor = factor
    with pytest.raises(KeyholeError) as failure:
        parity.check(model, tokens(2, 23))
    assert failure.value.code == ErrorCode.PARITY_FAILED


def test_logits_that_are_not_numbers_are_caught() -> None:
    model = tiny("llama", dtype=torch.float32)
    model.model.layers[0].mlp.down_proj.weight.fill_(torch.nan)
    with pytest.raises(KeyholeError) as failure:
        parity.check(model, tokens(1, 23))
    assert failure.value.code == ErrorCode.MODEL_REFUSED
    assert "not all finite" in failure.value.message


def test_a_model_whose_weights_were_never_filled_is_refused_and_not_called_wrong() -> None:
    model = tiny("llama", dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.zero_()
    with pytest.raises(KeyholeError, match="all zero") as failure:
        parity.check(model, tokens(1, 23))
    assert failure.value.code == ErrorCode.MODEL_REFUSED


def test_a_model_that_transformers_itself_cannot_run_is_refused() -> None:
    class Broken(transformers.LlamaForCausalLM):
        def forward(self, *arguments, **named):
            raise ZeroDivisionError("by a size of the config")

    with pytest.raises(KeyholeError, match="ZeroDivisionError") as failure:
        parity.check(Broken(FAMILIES["llama"]()).eval(), tokens(1, 23))
    assert failure.value.code == ErrorCode.MODEL_REFUSED


def test_a_model_without_eager_attention_is_compared_with_sdpa() -> None:
    class WithoutEager(transformers.LlamaForCausalLM):
        def set_attn_implementation(self, implementation, **named):
            if implementation == "eager":
                raise ValueError("no eager attention")
            super().set_attn_implementation(implementation, **named)

    model = WithoutEager(FAMILIES["llama"]()).eval()
    assert parity.check(model, tokens(1, 23))["reference"] == "sdpa"
