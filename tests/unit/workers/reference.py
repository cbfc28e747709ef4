"""Brute force in float64: the whole pattern, autograd through the untouched computation, one row at a time with NumPy.

It shares nothing with Keyhole: its attention is written out here and registered under a name of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask


@dataclass
class Layer:
    pattern: Tensor  # [batch, head, query, key]
    visible: Tensor  # the same, True where the key is in the row
    value: Tensor  # [batch, head, key, d_value]
    output: Tensor  # [batch, head, query, d_value]; autograd sees it
    scores: Tensor  # as they enter the softmax, hidden keys among them; autograd sees them


@dataclass
class Recording:
    layers: list[Layer] = field(default_factory=list)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    # (layer, head, query, key): what is added to that score, in every sequence
    offsets: dict[tuple[int, int, int, int], float] = field(default_factory=dict)


_recordings: list[Recording] = []


def _reference_attention(
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
    groups = query.shape[1] // key.shape[1]
    key, value = (torch.repeat_interleave(tensor, groups, dim=1) for tensor in (key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    added = torch.zeros_like(scores)
    for (layer, *place), amount in _recordings[-1].offsets.items():
        if layer == module.layer_idx:
            added[(slice(None), *place)] = amount
    scores = scores + added
    visible = (attention_mask == 0).expand_as(scores)
    unnormalized = torch.where(visible, scores.exp(), 0)
    total = unnormalized.sum(-1, keepdim=True)
    if s_aux is not None:
        total = total + s_aux.to(scores.dtype).exp()[None, :, None, None]
    pattern = unnormalized / total
    output = torch.einsum("bhqk,bhkd->bhqd", pattern, value)
    _recordings[-1].layers.append(Layer(pattern.detach(), visible, value.detach(), output, scores))
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("reference", _reference_attention)
AttentionMaskInterface.register("reference", eager_mask)


@contextmanager
def _recording(offsets: dict[tuple[int, int, int, int], float] | None) -> Iterator[Recording]:
    _recordings.append(Recording(offsets=offsets or {}))
    try:
        yield _recordings[-1]
    finally:
        _recordings.pop()


def record(
    model: PreTrainedModel, token_ids: Tensor, offsets: dict[tuple[int, int, int, int], float] | None = None
) -> Recording:
    """Forward pass with explicit float64 attention; gradients are asked for at the embeddings."""
    before = model.config._attn_implementation
    model.set_attn_implementation("reference")
    handle = model.get_input_embeddings().register_forward_hook(lambda *call: call[-1].requires_grad_())
    try:
        with _recording(offsets) as recording, torch.enable_grad():
            recording.logits = model(token_ids, use_cache=False).logits
        return recording
    finally:
        handle.remove()
        model.set_attn_implementation(before)


def sequence_credit(recording: Recording, token_ids: Tensor) -> list[Tensor]:
    """δ of the mean next-token loss of each sequence, per layer [batch, head, query, d_value]."""
    losses = torch.stack(
        [F.cross_entropy(logits[:-1], ids[1:]) for logits, ids in zip(recording.logits, token_ids, strict=True)]
    )
    return list(torch.autograd.grad(losses.sum(), [layer.output for layer in recording.layers], retain_graph=True))


def own_token_credit(recording: Recording, token_ids: Tensor) -> list[Tensor]:
    """δ_i of the loss of the prediction made at i: one backward pass per query through the untouched model."""
    outputs = [layer.output for layer in recording.layers]
    deltas = [torch.zeros_like(output) for output in outputs]
    for position in range(token_ids.shape[1] - 1):
        loss = F.cross_entropy(recording.logits[:, position], token_ids[:, position + 1], reduction="sum")
        for delta, gradient in zip(deltas, torch.autograd.grad(loss, outputs, retain_graph=True), strict=True):
            delta[:, :, position] = gradient[:, :, position]
    return deltas


def spreads(recording: Recording, deltas: list[Tensor], queries: range) -> tuple[np.ndarray, np.ndarray]:
    """log10 D_a and log10 D_c, each [layer, head, sequence, query], by NumPy's median of one row after another."""
    batch, heads = deltas[0].shape[:2]
    shape = (len(deltas), heads, batch, len(queries))
    log10_d_a, log10_d_c = np.empty(shape), np.empty(shape)
    for where in np.ndindex(shape):
        layer, head, sequence, number = where
        found, query = recording.layers[layer], queries[number]
        keys = found.visible[sequence, head, query]
        weights = found.pattern[sequence, head, query][keys].double().numpy()
        output = found.output[sequence, head, query].detach()
        advantage = (found.value[sequence, head][keys] - output) @ deltas[layer][sequence, head, query]
        log10_d_a[where] = largest_over_median(weights)
        log10_d_c[where] = largest_over_median(advantage.abs().double().numpy())
    return log10_d_a, log10_d_c


def largest_over_median(row: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log10(row.max() / np.median(row)))
