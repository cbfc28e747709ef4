"""A model ready to be measured, and its dimensions."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError


@dataclass(frozen=True)
class Architecture:
    """Dimensions as the live model has them; stored with the model."""

    model_type: str
    layers: int
    heads: int  # query heads
    kv_heads: int  # key/value heads; query head h uses h // (heads / kv_heads)
    d_head: int  # width of a query and key
    d_model: int
    vocabulary_size: int  # rows of the embedding: token ids are below it
    n_ctx: int  # longest sequence the model was made for; 0 if it does not say
    parameters: int


@dataclass(frozen=True)
class LoadedModel:
    model: PreTrainedModel  # eval mode, frozen, attention through the seam
    tokenizer: PreTrainedTokenizerFast | None
    identity: str  # as resolve_model gives it
    architecture: Architecture
    parity: dict[str, Any]  # difference of logits from the model's own attention, see workers/attention/parity.py
    device: str
    dtype: str


def describe(model: PreTrainedModel) -> Architecture:
    """Dimensions of a loaded model; raises KeyholeError (model_unsupported) if the config does not give them."""
    config: Any = model.config.get_text_config()
    heads = _number(config, "num_attention_heads")
    d_model = _number(config, "hidden_size")
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return Architecture(
        model_type=config.model_type,
        layers=_number(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=1 if getattr(config, "multi_query", False) else getattr(config, "num_key_value_heads", None) or heads,
        d_head=_head_width(config, d_model // heads),
        d_model=d_model,
        vocabulary_size=embedding.num_embeddings,
        n_ctx=getattr(config, "max_position_embeddings", None) or 0,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _head_width(config: Any, default: int) -> int:
    if getattr(config, "qk_nope_head_dim", None):  # latent attention: a part with positions and a part without
        return config.qk_nope_head_dim + config.qk_rope_head_dim
    return getattr(config, "head_dim", None) or default


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED, f"The config of this {config.model_type} model has {name} = {value!r}."
        )
    return value
