"""Attention whose scores become weights in another way than the model's, exactly, by blocks of queries.

Differentiable by autograd with respect to queries, keys, values, sinks and whatever ``weigh`` takes along. Each block
is checkpointed: the backward pass computes its scores again, and holds that of one block's graph (scores, weights and
their gradients, about five times a block of rows) and never a T×T matrix.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention import rows
from workers.attention.inputs import AttentionInputs

# Scores with −∞ where a key is not in the row, and the sinks, one per head of the scores; returns weights.
Weigh = Callable[[Tensor, Tensor | None], Tensor]


def softmax_weights(
    scores: Float[Tensor, "batch head query key"], sinks: Float[Tensor, " head"] | None
) -> Float[Tensor, "batch head query key"]:
    """Weights that add up to 1, or to less by what a sink takes."""
    normalizers = scores.logsumexp(-1, keepdim=True)
    if sinks is not None:
        normalizers = torch.logaddexp(normalizers, sinks.to(scores.dtype)[None, :, None, None])
    return (scores - normalizers).exp()


def attend_by_blocks(
    inputs: AttentionInputs, weigh: Weigh, *, average: bool = False
) -> Float[Tensor, "batch head_out position d_out"]:
    """Head outputs Σ_j a_ij v_j with the weights that ``weigh`` makes of the scores, in the dtype of the values.

    With ``average`` scores (after the soft cap) and sinks are averaged over the heads first: one head is left, whose
    values are those of all key/value heads side by side.
    """
    sinks = inputs.sinks
    value = inputs.value
    if average:
        require_one_mask(inputs)
        value = side_by_side(value)
        sinks = None if sinks is None else rows.at_least_float32(sinks).mean(0, keepdim=True)

    def block(positions: range) -> Tensor:
        index, width = rows.as_index(positions), positions[-1] + 1
        query = rows.at_least_float32(inputs.query[:, :, index]) * inputs.scaling
        scores = rows.grouped_product(query, rows.at_least_float32(inputs.key[:, :, :width]))
        if inputs.softcap is not None:  # not in place: autograd needs the tanh
            scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
        if average:
            scores = scores.mean(1, keepdim=True)
        hidden = rows.hidden_keys(inputs, positions, width)
        rows.hidden_columns(scores, hidden).masked_fill_(hidden, -torch.inf)
        shared = rows.at_least_float32(value[:, :, :width]).transpose(-1, -2)
        return rows.grouped_product(weigh(scores, sinks), shared).to(value.dtype)

    blocks = list(rows.query_blocks(range(inputs.query.shape[2]), inputs))
    if not torch.is_grad_enabled():
        return torch.cat([block(positions) for positions in blocks], dim=2)
    return torch.cat(
        [checkpoint(block, positions, use_reentrant=False, preserve_rng_state=False) for positions in blocks], dim=2
    )


def side_by_side(tensor: Float[Tensor, "batch kv_head position d"]) -> Float[Tensor, "batch 1 position all_d"]:
    """The vectors of all heads joined to one long vector of one head."""
    return tensor.transpose(1, 2).flatten(2)[:, None]


def require_one_mask(inputs: AttentionInputs) -> None:
    """Heads that see different keys have no row in common; raises KeyholeError (model_unsupported)."""
    if inputs.mask is not None and inputs.mask.shape[1] != 1:
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"Layer {inputs.layer} masks each of its heads differently; they cannot share one pattern.",
            "Choose a model whose heads see the same keys.",
        )
