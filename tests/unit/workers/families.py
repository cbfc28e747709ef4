"""Tiny random models of every family the seam is tested on, with attention that is far from uniform."""

from collections.abc import Callable

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 61
LAYERS = 2
HEADS = 4
WINDOW = 7  # of the families with sliding windows; tests use longer sequences


def _llama_like(config: type, **fields: object) -> transformers.PretrainedConfig:
    return config(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **fields,
        }
    )


def _gpt2(**fields: object) -> transformers.PretrainedConfig:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 128, "n_embd": 32, "n_layer": LAYERS, "n_head": HEADS}
    return transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, **fields)


FAMILIES: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "gpt2": _gpt2,
    "gpt2-inverse-layer": lambda: _gpt2(scale_attn_by_inverse_layer_idx=True),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "gptj": lambda: transformers.GPTJConfig(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=32,
        n_layer=LAYERS,
        n_head=HEADS,
        rotary_dim=4,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": lambda: _llama_like(transformers.LlamaConfig),
    "mistral": lambda: _llama_like(transformers.MistralConfig, sliding_window=WINDOW),
    "qwen2": lambda: _llama_like(transformers.Qwen2Config),
    "qwen3": lambda: _llama_like(transformers.Qwen3Config, head_dim=8),
    "gemma2": lambda: _llama_like(
        transformers.Gemma2Config,
        head_dim=8,
        sliding_window=WINDOW,
        query_pre_attn_scalar=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=10.0,
    ),
    "gemma3": lambda: _llama_like(
        transformers.Gemma3TextConfig,
        head_dim=8,
        sliding_window=WINDOW,
        query_pre_attn_scalar=5,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "olmo2": lambda: _llama_like(transformers.Olmo2Config),
    "phi3": lambda: _llama_like(transformers.Phi3Config),
    "granite": lambda: _llama_like(transformers.GraniteConfig, attention_multiplier=0.2, logits_scaling=2.0),
    "gpt_oss": lambda: _llama_like(
        transformers.GptOssConfig,
        head_dim=8,
        sliding_window=WINDOW,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "opt": lambda: transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
}

# architectures that accept the setting and never call the attention function
DISPATCHLESS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "bloom": lambda: transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=LAYERS, n_head=HEADS),
    "falcon": lambda: transformers.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        bos_token_id=1,
        eos_token_id=2,
    ),
}


def tiny(family: str, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """A model of ``family`` with random weights, its own eager attention, frozen and in evaluation mode.

    The usual initial weights (sd 0.02) give nearly uniform attention, on which many mistakes do not show; matrices
    are drawn with sd 1/√fan-in times 1.5 and all vectors moved off their initial zeros and ones.
    """
    config = (FAMILIES | DISPATCHLESS)[family]()
    experts = {"experts_implementation": "eager"} if hasattr(config, "num_local_experts") else {}  # runs in float64 too
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # for what is drawn when a model is made, such as sinks
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32, **experts
        )
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.data = noise * 1.5 * parameter.shape[-1] ** -0.5
        else:
            parameter.data = parameter.data + 0.3 * noise
    model.tie_weights()
    return model.to(dtype).eval().requires_grad_(False)


def tokens(sequences: int, length: int, *, seed: int = 1) -> torch.Tensor:
    """Random token ids [sequence, position] that avoid the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (sequences, length), generator=generator)
