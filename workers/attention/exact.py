"""Attention with soft-capped scores or sinks, which fused kernels do not offer: exact, by blocks of queries.

Forward and backward recompute the scores of one block at a time (as flash attention does), so nothing larger than a
block of rows is kept. With a = softmax(s) over the row and its sink, and δ the gradient at the output,

    ∂L/∂v_j = Σ_i a_ij δ_i        ∂L/∂s_ij = a_ij δ_i·(v_j − y_i)        ∂L/∂sink = −Σ_i a_i,sink δ_i·y_i

The sink is a key whose value is zero; ds/d(c q·k) = 1 − (s / softcap)².
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs, Keys, Queries, Values


def exact_attention(inputs: AttentionInputs) -> Float[Tensor, "batch head position d_value"]:
    """Head outputs in the dtype of the values; softmax in float32 or better."""
    return _ExactAttention.apply(inputs.query, inputs.key, inputs.value, inputs.sinks, inputs)


class _ExactAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Queries, key: Keys, value: Values, sinks: Tensor | None, call: AttentionInputs
    ) -> Tensor:
        inputs = _with_tensors(call, query, key, value, sinks)
        normalizers = rows.log_normalizers(inputs)
        output = value.new_empty(*query.shape[:3], value.shape[-1])
        for positions in rows.query_blocks(range(query.shape[2]), inputs):
            weights, _ = _weights(inputs, positions, normalizers)
            shared = rows.at_least_float32(value[:, :, : positions[-1] + 1])
            output[:, :, rows.as_index(positions)] = rows.grouped_product(weights, shared.transpose(-1, -2)).to(
                value.dtype
            )
        ctx.save_for_backward(query, key, value, sinks, output, normalizers)
        # the call without its tensors: what autograd keeps is what is saved above
        ctx.constants = (call.layer, call.scaling, call.mask, call.softcap)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, output, normalizers = ctx.saved_tensors
        layer, scaling, mask, softcap = ctx.constants
        inputs = AttentionInputs(layer, query, key, value, scaling, mask, softcap, sinks)
        groups = query.shape[1] // key.shape[1]
        credit = rows.at_least_float32(gradients[0])
        carried = (credit * rows.at_least_float32(output)).sum(-1)  # δ_i·y_i
        d_query = torch.empty_like(rows.at_least_float32(query))
        d_key = torch.zeros_like(rows.at_least_float32(key))
        d_value = torch.zeros_like(rows.at_least_float32(value))
        for positions in rows.query_blocks(range(query.shape[2]), inputs):
            index, width = rows.as_index(positions), positions[-1] + 1
            weights, slope = _weights(inputs, positions, normalizers)
            d_scores = rows.grouped_product(credit[:, :, index], rows.at_least_float32(value[:, :, :width]))
            d_scores.sub_(carried[:, :, index, None]).mul_(weights).mul_(scaling)
            if slope is not None:
                d_scores.mul_(slope)
            shared = rows.at_least_float32(key[:, :, :width]).transpose(-1, -2)
            d_query[:, :, index] = rows.grouped_product(d_scores, shared)
            d_key[:, :, :width] += _by_key(d_scores, rows.at_least_float32(query[:, :, index]), groups)
            d_value[:, :, :width] += _by_key(weights, credit[:, :, index], groups)
        d_sinks = None
        if sinks is not None:
            sink_weights = torch.exp(rows.at_least_float32(sinks)[None, :, None] - normalizers)
            d_sinks = -(sink_weights * carried).sum((0, 2)).to(sinks.dtype)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_sinks, None


def _with_tensors(
    call: AttentionInputs, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
) -> AttentionInputs:
    return AttentionInputs(call.layer, query, key, value, call.scaling, call.mask, call.softcap, sinks)


def _weights(
    inputs: AttentionInputs, positions: range, normalizers: Tensor
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query key"] | None]:
    """Attention weights of a block, and the slope of the soft cap at its scores."""
    index, width = rows.as_index(positions), positions[-1] + 1
    scores = rows.raw_scores(inputs, inputs.query[:, :, index], width)
    slope = None if inputs.softcap is None else 1 - (scores / inputs.softcap) ** 2
    hidden = rows.hidden_keys(inputs, positions, width)
    rows.hidden_columns(scores, hidden).masked_fill_(hidden, -torch.inf)
    return scores.sub_(normalizers[:, :, index, None]).exp_(), slope


def _by_key(
    per_query: Float[Tensor, "batch head query key"], vectors: Float[Tensor, "batch head query d"], groups: int
) -> Float[Tensor, "batch kv_head key d"]:
    """Sum over queries and over the heads that share a key/value head."""
    batch, heads, queries, keys = per_query.shape
    left = per_query.reshape(batch, heads // groups, groups * queries, keys)
    right = vectors.reshape(batch, heads // groups, groups * queries, vectors.shape[-1])
    return left.transpose(-1, -2) @ right
