"""Which ``model_type`` of a config.json can be measured, and why the others cannot.

A model is measured through transformers' AttentionInterface, so it must dispatch every attention layer through it, and
attention must be the only way in which positions mix: own-token credit cuts every other path (docs/architecture.md).
"""

from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError

# decoder-only, one attention call per layer through the interface; tests build a small one of each and count the calls
SUPPORTED = frozenset(
    {
        "codegen",
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gpt_oss",
        "gptj",
        "granite",
        "granitemoe",
        "helium",
        "llama",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "persimmon",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)

_NO_DISPATCH = "its attention does not go through transformers' AttentionInterface, so it cannot be observed"
_RECURRENT = "its recurrent, convolution or state-space layers mix positions outside attention"
_ENCODER = "it is not a causal language model"
_MULTIMODAL = "it is multimodal; only text models are measured"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("bloom", "falcon", "mpt", "gpt_neo", "xglm", "openai-gpt", "ctrl"), _NO_DISPATCH),
    **dict.fromkeys(
        (
            *("mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "nemotron_h"),
            *("rwkv", "recurrent_gemma", "lfm2", "lfm2_moe", "granitemoehybrid", "qwen3_next", "xlstm", "minimax"),
            *("qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "olmo_hybrid"),
        ),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("bert", "roberta", "albert", "distilbert", "electra", "deberta", "deberta-v2", "xlm-roberta"), _ENCODER
    ),
    **dict.fromkeys(
        ("modernbert", "t5", "mt5", "umt5", "t5gemma", "bart", "mbart", "pegasus", "marian", "whisper"), _ENCODER
    ),
    **dict.fromkeys(
        ("llava", "gemma3", "gemma3n", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mllama", "llama4"), _MULTIMODAL
    ),
}

# values of ``layer_types``; anything else there names a layer that is not softmax attention over the past
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})


def require_supported(config: dict[str, Any]) -> str:
    """The ``model_type`` of a vetted config.json; raises KeyholeError (model_unsupported) with the reason."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise _unsupported(f"config.json has no model_type (found {model_type!r}).")
    if model_type in REFUSED:
        raise _unsupported(f"A {model_type} model cannot be measured: {REFUSED[model_type]}.")
    if model_type not in SUPPORTED:
        raise _unsupported(f"Models of type {model_type!r} are not among those Keyhole was checked with.")
    if config.get("is_encoder_decoder"):
        raise _unsupported(f"A {model_type} model with is_encoder_decoder cannot be measured: {_ENCODER}.")
    layer_types = config.get("layer_types")
    if layer_types is not None and not isinstance(layer_types, list):
        raise _unsupported(f"config.json has layer_types = {layer_types!r}, which is no list of layers.")
    strange = sorted({repr(layer) for layer in layer_types or () if not _is_attention(layer)})
    if strange:
        raise _unsupported(f"The model has layers of type {', '.join(strange)}: {_RECURRENT}.")
    return model_type


def _is_attention(layer: object) -> bool:
    return isinstance(layer, str) and layer in _ATTENTION_LAYERS


def _unsupported(message: str) -> KeyholeError:
    return KeyholeError(ErrorCode.MODEL_UNSUPPORTED, message, f"Supported: {', '.join(sorted(SUPPORTED))}.")
