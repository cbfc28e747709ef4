"""Own-token credit: each query's gradient is that of the one prediction made at its position.

The loss of the prediction at i reaches row i of the scores only through position i's own residual stream. So keys and
values are constants everywhere but on the diagonal,

    s_ij = c q_i·sg(k_j) (j < i),   s_ii = c q_i·k_i,   y_i = Σ_j a_ij sg(v_j) + a_ii (v_i − sg(v_i)),

and one backward pass of the *sum* of all token losses gives every query its own δ. The forward output is unchanged;
fused attention with constant keys and values returns ∂L/∂q, and the diagonal adds

    ∂L/∂v_i = a_ii δ_i,   ∂L/∂k_i = c a_ii (δ_i·(v_i − y_i)) (1 − (s_ii / softcap)²) q_i,

with a_ii = exp(s_ii − lse_i), summed over the query heads that share a key/value head (the last factor only under a
soft cap). A sink is in lse and gives no value, so nothing else changes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs

Attend = Callable[[AttentionInputs], Tensor]


def own_token_attention(inputs: AttentionInputs, attend: Attend) -> Float[Tensor, "batch head position d_value"]:
    """Output of ``attend`` whose gradient reaches keys and values through the diagonal of the pattern only."""
    output = attend(replace(inputs, key=inputs.key.detach(), value=inputs.value.detach()))
    if not (inputs.key.requires_grad or inputs.value.requires_grad):
        return output
    with torch.no_grad():
        weights, slope = _diagonal(inputs)
    return _DiagonalCredit.apply(output, inputs.query.detach(), inputs.key, inputs.value, weights, slope)


def _diagonal(
    inputs: AttentionInputs,
) -> tuple[Float[Tensor, "batch head position"], Float[Tensor, "batch head position"]]:
    """Weight a_ii of each query on itself, and a_ii · ds_ii/d(q_i·k_i)."""
    query, key = rows.at_least_float32(inputs.query), rows.at_least_float32(inputs.key)
    groups = query.shape[1] // key.shape[1]
    scores = (query.unflatten(1, (-1, groups)) * key[:, :, None]).sum(-1).flatten(1, 2) * inputs.scaling
    slope = torch.full_like(scores, inputs.scaling)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
        slope = slope * (1 - (scores / inputs.softcap) ** 2)
    weights = torch.exp(scores - rows.log_normalizers(inputs))
    return weights, weights * slope


class _DiagonalCredit(torch.autograd.Function):
    """Hands the output on unchanged; its backward adds the diagonal's share to keys and values."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, slope: Tensor
    ) -> Tensor:
        ctx.save_for_backward(output, query, value, weights, slope)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        output, query, value, weights, slope = ctx.saved_tensors
        groups = query.shape[1] // value.shape[1]
        credit = rows.at_least_float32(gradients[0])
        by_group = credit.unflatten(1, (-1, groups))
        advantage = (by_group * rows.at_least_float32(value)[:, :, None]).sum(-1).flatten(1, 2)
        advantage = advantage - (credit * rows.at_least_float32(output)).sum(-1)
        d_key = rows.at_least_float32(query) * (slope * advantage)[..., None]
        d_value = credit * weights[..., None]
        d_key, d_value = (share.unflatten(1, (-1, groups)).sum(2).to(value.dtype) for share in (d_key, d_value))
        return gradients[0], None, d_key, d_value, None, None
