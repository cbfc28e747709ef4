"""Every model_type on the list of supported ones is measured the way the list promises."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from services.contracts.architectures import REFUSED, SUPPORTED, require_supported
from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention import parity, seam
from workers.models.loaded import describe

# under every name that some config class gives them
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 16,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "rotary_dim": 4,  # GPT-2, GPT-J and CodeGen
    "word_embed_proj_dim": 32,
    "ffn_dim": 48,  # OPT
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,  # DeepSeek
}
LATENT = ("deepseek_v2", "deepseek_v3")  # as many key/value heads as heads, by construction


def small(model_type: str) -> PreTrainedModel:
    names = {field.name for field in dataclasses.fields(CONFIG_MAPPING[model_type])}
    sizes = {name: value for name, value in SIZES.items() if name in names}
    if model_type in LATENT:
        sizes["num_key_value_heads"] = 4
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval()


class _Last:
    def forward(self, attention) -> None:
        self.attention = attention

    def backward(self, attention, delta) -> None:
        raise AssertionError("no backward pass here")


@pytest.mark.parametrize("model_type", sorted(SUPPORTED))
def test_a_supported_model_agrees_with_its_own_attention_and_is_described_by_its_shapes(model_type: str) -> None:
    model = small(model_type)
    token_ids = torch.randint(61, (1, 48))
    parity.check(model, token_ids)  # raises on another result, or when a layer does not call the seam
    last = _Last()
    with torch.no_grad(), seam.observing(model, [last]):
        model(token_ids, use_cache=False)
    architecture = describe(model)
    assert last.attention.query.shape == (1, architecture.heads, 48, architecture.d_head)
    assert last.attention.key.shape == (1, architecture.kv_heads, 48, architecture.d_head)
    assert last.attention.layer == architecture.layers - 1
    assert (architecture.d_model, architecture.vocabulary_size) == (32, 61)


def test_nothing_is_both_supported_and_refused() -> None:
    assert not SUPPORTED & set(REFUSED)


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_refused_model_type_is_one_that_transformers_knows_and_has_a_reason(model_type: str) -> None:
    assert model_type in CONFIG_MAPPING
    with pytest.raises(KeyholeError) as refused:
        require_supported({"model_type": model_type})
    assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED
    assert REFUSED[model_type] in refused.value.message
