"""Losses under changed routing by brute force: one model pass in float64, every head's whole pattern written out."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

_NAME = "routing_reference"
_vectors: dict[str, Any] = {"qk_norm": False, "scale": None}
_setting: dict[int, tuple[str, float | None]] = {}  # by layer, its routing and the bias of a sigmoid


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    heads, kv_heads = query.shape[1], key.shape[1]
    if _vectors["qk_norm"]:
        query, key = (each / (each.square().mean(-1, keepdim=True) + 1e-6).sqrt() for each in (query, key))
    scaling = _vectors["scale"] or scaling
    visible = (attention_mask == 0)[:, 0]
    scores = []
    for head in range(heads):
        each = query[:, head] @ key[:, head * kv_heads // heads].mT * (scaling or query.shape[-1] ** -0.5)
        scores.append(each if softcap is None else softcap * torch.tanh(each / softcap))
    sinks = [None] * heads if s_aux is None else list(s_aux.to(query.dtype))
    routing, bias = _setting.get(module.layer_idx, ("softmax", None))
    if routing.startswith("shared"):
        scores = [torch.stack(scores).mean(0)] * heads
        sinks = sinks if s_aux is None else [torch.stack(sinks).mean()] * heads
    outputs = []
    for head in range(heads):
        if "softmax" in routing:
            weights = torch.where(visible, scores[head].exp(), 0)
            total = weights.sum(-1, keepdim=True)
            weights = weights / (total if sinks[head] is None else total + sinks[head].exp())
        else:
            offset = -visible.sum(-1, keepdim=True).to(query.dtype).log() if bias is None else bias
            weights = torch.where(visible, 1 / (1 + torch.exp(-scores[head] - offset)), 0)
        outputs.append(weights @ value[:, head * kv_heads // heads])
    return torch.stack(outputs, 2).contiguous(), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)


def token_losses(
    model: PreTrainedModel, ids: Tensor, routing: str, layers: Collection[int], bias: float | None = None
) -> np.ndarray:
    """Loss of every prediction [sequence, position], the last position left out, with ``layers`` routed so."""
    return token_losses_by_layer(model, ids, dict.fromkeys(layers, (routing, bias)))


def token_losses_by_layer(
    model: PreTrainedModel, ids: Tensor, layers: Mapping[int, tuple[str, float | None]]
) -> np.ndarray:
    """The same with a routing and a bias for each layer, softmax where none is given."""
    with torch.no_grad():
        logits = reference_logits(model, ids, layers)
    return F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none").double().numpy()


def reference_logits(
    model: PreTrainedModel,
    ids: Tensor,
    layers: Mapping[int, tuple[str, float | None]],
    *,
    qk_norm: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Logits with the layers routed so, and queries and keys as asked in every layer; differentiable."""
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    _setting.clear()
    _setting.update(layers)
    _vectors.update(qk_norm=qk_norm, scale=scale)
    try:
        return model(ids, use_cache=False).logits
    finally:
        model.set_attn_implementation(before)
        _vectors.update(qk_norm=False, scale=None)
