"""NATQ by brute force in float64: every row's Fisher matrix from its definition, one solve after another with NumPy.

The Fisher matrix is Σ_o p_o ∇log p_o ∇log p_oᵀ over the outcomes o of a row, its keys and the sink, with the gradients
taken by autograd. It shares nothing with Keyhole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

_damping: list[float] = []


def fisher(
    query: Tensor, keys: Tensor, scaling: float, softcap: float | None = None, sink: Tensor | None = None
) -> np.ndarray:
    """[d, d] of one query [d] over the keys [key, d] of its row."""

    def log_probabilities(query: Tensor) -> Tensor:
        scores = scaling * keys @ query
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sink is not None:
            scores = torch.cat([scores, sink.view(1)])
        return torch.log_softmax(scores, 0)

    query = query.detach().double()
    keys, sink = keys.detach().double(), None if sink is None else sink.detach().double()
    slopes = torch.autograd.functional.jacobian(log_probabilities, query).numpy()
    probabilities = log_probabilities(query).exp().numpy()
    return (slopes * probabilities[:, None]).T @ slopes


def natural(gradient: np.ndarray, matrix: np.ndarray, damping: float) -> np.ndarray:
    """Equation 44; a gradient or matrix of 0 leaves the gradient."""
    d = len(gradient)
    if not gradient.any() or not matrix.any():
        return gradient
    x = np.linalg.solve(matrix + damping * np.trace(matrix) / d * np.eye(d), gradient)
    return x * np.linalg.norm(gradient) / np.linalg.norm(x)


def natural_gradients(
    query: Tensor,
    key: Tensor,
    gradient: Tensor,
    scaling: float,
    visible: Tensor,
    *,
    damping: float = 0.1,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """g̃ [batch, head, position, d]; ``visible`` [batch, head, query, key] is True where a key is in the row."""
    groups = query.shape[1] // key.shape[1]
    found = np.zeros(gradient.shape)
    for where in np.ndindex(*gradient.shape[:3]):
        sequence, head = where[:2]
        keys = key[sequence, head // groups][visible[where]]
        given = gradient[where].detach().double().numpy()
        if len(keys) == 0 or (len(keys) == 1 and sinks is None):
            found[where] = given
            continue
        matrix = fisher(query[where], keys, scaling, softcap, None if sinks is None else sinks[head])
        found[where] = natural(given, matrix, damping)
    return torch.from_numpy(found)


def _reference_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    visible = (attention_mask == 0).expand(*query.shape[:3], -1)
    query = query.clone()
    given, shared, damping = query.detach(), key.detach(), _damping[-1]
    query.register_hook(lambda g: natural_gradients(given, shared, g, scaling, visible, damping=damping))
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    scores = (query @ key.mT * scaling).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("natq_reference", _reference_attention)
AttentionMaskInterface.register("natq_reference", eager_mask)


@contextmanager
def trained_by_brute_force(model: PreTrainedModel, damping: float = 0.1) -> Iterator[None]:
    """Backward passes of the block go through explicit patterns, and queries get g̃."""
    before = model.config._attn_implementation
    model.set_attn_implementation("natq_reference")
    _damping.append(damping)
    try:
        yield
    finally:
        _damping.pop()
        model.set_attn_implementation(before)
