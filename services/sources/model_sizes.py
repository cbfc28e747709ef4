"""The sizes a config.json claims, compared with the tensors that lie beside it, before anything is built from them.

A loader makes what the config says and looks into the files later: a small folder could take all memory there is.
"""

from collections.abc import Mapping
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.safetensors_header import TensorEntry

# config classes name the same sizes differently: GPT-2, GPT-J and CodeGen in the second place
_VOCABULARY = ("vocab_size",)
_WIDTH = ("hidden_size", "n_embd")
_EMBEDDING_WIDTH = ("word_embed_proj_dim", *_WIDTH)  # the first is OPT's
_LAYERS = ("num_hidden_layers", "n_layer")
_HEADS = ("num_attention_heads", "n_head", "num_key_value_heads", "head_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_COUNTS = (*_VOCABULARY, *_EMBEDDING_WIDTH, *_LAYERS, *_HEADS, *_POSITIONS)

LARGEST = 1 << 31  # of any size; no known model comes near
MOST_LAYERS = 1024  # the deepest published models have some 130
MOST_EXPERTS = 4096  # some 400
MOST_POSITIONS = 1 << 26  # 10 million are the longest claimed


def vet_sizes(config: Mapping[str, Any]) -> None:
    """Refuse sizes that are no positive whole numbers, or that no model has; raises KeyholeError (model_refused)."""
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and (type(value) is not int or not 1 <= value < LARGEST):
            raise _refused(f"config.json has {name} = {_shown(value)}, which is no size of a model.")
    limits = ((_LAYERS, MOST_LAYERS), (_EXPERTS, MOST_EXPERTS), (_POSITIONS, MOST_POSITIONS))
    for name, most in ((name, most) for names, most in limits for name in names):
        value = config.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise _refused(f"config.json has {name} = {_shown(value)}; at most {most:,} are read.")
    window = config.get("sliding_window")
    if type(window) is int and window < 0:
        raise _refused(f"config.json has sliding_window = {_shown(window)}, which is no size of a model.")
    text_config = config.get("text_config")
    if text_config is not None and not isinstance(text_config, dict):
        raise _refused(f"config.json has text_config = {_shown(text_config)}, which is no configuration.")


def vet_against_tensors(config: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> None:
    """Refuse a config whose embedding or layers cannot be in the files; raises KeyholeError (model_refused)."""
    elements = sum(entry.elements for entry in tensors.values())
    vocabulary, width, layers = _first(config, _VOCABULARY), _first(config, _EMBEDDING_WIDTH), _first(config, _LAYERS)
    if vocabulary and width and vocabulary * width > elements:
        raise _refused(
            f"config.json claims {vocabulary:,} tokens of width {width:,}, {vocabulary * width:,} numbers; the "
            f"safetensors files hold {elements:,}."
        )
    if layers and layers > len(tensors):
        raise _refused(f"config.json claims {layers:,} layers; the safetensors files hold {len(tensors):,} tensors.")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _refused(message: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_REFUSED, message, "Check that config.json belongs to these weights, and that they are whole."
    )
