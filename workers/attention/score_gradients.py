"""Gradient of a loss at the scores of a block of rows.

    ∂L/∂s_ij = a_ij δ_i·(v_j − y_i)

for the scores s as they enter the softmax: with a soft cap, those after the cap. Where δ is that of own-token credit,
row i is the gradient of the loss of the prediction made at i.

In trained models one key often takes nearly all of a row's attention. Its v_j − y_i is then a difference of nearly
equal numbers, whose rounding error a_ij does not make small. So the row is centred once more: without a sink its
gradients add up to 0, with one to a_sink δ_i·y_i, which leaves that key the error of the others.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import advantage, rows
from workers.attention.inputs import LayerAttention


@dataclass(frozen=True)
class GradientRows:
    """Rows of a block of queries over keys 0 … last query; the tensors are the caller's."""

    scores: Float[Tensor, "batch head query key"]  # −∞ where the key is hidden
    gradient: Float[Tensor, "batch head query key"]  # 0 where the key is hidden
    residual: Float[Tensor, "batch head query"]  # relative departure from Σ a A = 0, see workers/attention/advantage.py


def of_block(
    attention: LayerAttention, positions: range, delta: Float[Tensor, "batch head query d_value"]
) -> GradientRows:
    """Scores and gradients of the queries at ``positions`` (ascending), whose δ are given."""
    found = advantage.of_block(attention, positions, delta)
    low, high = found.advantage.aminmax(dim=-1)
    residual = found.residual(torch.maximum(-low, high))
    weights = (found.scores - found.log_normalizers[..., None]).exp_()
    gradient = found.advantage.neg_().mul_(weights)
    excess = gradient.sum(-1)
    if attention.sinks is not None:
        output = rows.at_least_float32(attention.output[:, rows.as_index(positions)].transpose(1, 2))
        carried = (rows.at_least_float32(delta) * output).sum(-1)
        excess = excess - _sink_weights(attention, found.log_normalizers) * carried
    gradient.sub_(weights.mul_((excess / weights.sum(-1))[..., None]))
    return GradientRows(found.scores, gradient, residual)


def _sink_weights(
    attention: LayerAttention, log_normalizers: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head query"]:
    assert attention.sinks is not None
    return torch.exp(attention.sinks.to(log_normalizers.dtype)[None, :, None] - log_normalizers)
