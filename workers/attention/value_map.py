"""Equation 37 of "Stuck in a Loop" on single rows: what a layer adds is one linear map of its weighted input.

    Σ_h O_h y_hi = Σ_h O_h V_h x̃_hi,        x̃_hi = Σ_j a_hij x_j

With one pattern for all heads x̃ is the same in each, and Σ_h O_h V_h = V_eff is one map. The left side is what the
model went on with; on the right the weights are written out anew, in float64, from the layer's queries and keys, and
the matrices come from the module itself. Where values are not linear in the layer's input, Σ_j a_hij v_hj takes the
place of V_h x̃_hi; where there is no output projection, heads are compared before it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workers.attention.inputs import LayerAttention
from workers.attention.projections import Projection, projections
from workers.attention.rows import at_least_float32

# Departure of the module's own values from V x + b, relative, above which they count as not linear in x: more than
# bfloat16 rounds, less than any norm of the values would change.
_LINEAR = 2e-2


def row_weights(
    attention: LayerAttention,
    positions: Sequence[int],
    *,
    softmax: bool,
    shared: bool,
    bias: float | None,
) -> Float[Tensor, "batch head query key"]:
    """Weights of a few rows in float64, for as many heads as have their own; ``bias`` none means −log of row length."""
    batch, heads, _, width = attention.query.shape
    kv_heads = attention.key.shape[1]
    query = attention.query[:, :, list(positions)].double().view(batch, kv_heads, -1, len(positions), width)
    scores = torch.einsum("bgrqd,bgkd->bgrqk", query, attention.key.double()).flatten(1, 2) * attention.scaling
    if attention.softcap is not None:
        scores = attention.softcap * torch.tanh(scores / attention.softcap)
    sinks = None if attention.sinks is None else attention.sinks.double().view(1, heads, 1, 1)
    if shared:
        scores = scores.mean(1, keepdim=True)
        sinks = None if sinks is None else sinks.mean(1, keepdim=True)
    visible = _visible(attention, positions)
    if softmax:
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is None:
            return scores.softmax(-1)
        return torch.cat([scores, sinks.expand(batch, -1, len(positions), 1)], -1).softmax(-1)[..., :-1]
    offset = -visible.sum(-1, keepdim=True).double().log() if bias is None else bias
    return torch.where(visible, torch.sigmoid(scores + offset), 0)


def departure(
    attention: LayerAttention, positions: Sequence[int], weights: Float[Tensor, "batch weighing query key"]
) -> float:
    """‖left − right‖ / ‖left‖ of equation 37 over the rows at ``positions``."""
    heads, kv_heads = attention.query.shape[1], attention.key.shape[1]
    found = projections(attention.module, heads, kv_heads)
    weights = weights.to(torch.promote_types(attention.query.dtype, torch.float32))
    if attention.hidden is not None and found.value is not None and _linear(attention, found.value, positions):
        mixed = weights @ at_least_float32(attention.hidden)[:, None]
        expected = _values(mixed.expand(-1, heads, -1, -1), found.value, weights.sum(-1, keepdim=True))
    else:
        value = at_least_float32(attention.value).repeat_interleave(heads // kv_heads, 1)
        expected = weights @ value
    observed = at_least_float32(attention.output[:, list(positions)]).transpose(1, 2)
    if found.output is not None:
        weight = at_least_float32(found.output.weight)
        expected, observed = ((side @ weight).sum(1) for side in (expected, observed))
    return float((observed - expected).norm() / observed.norm().clamp_min(torch.finfo(observed.dtype).tiny))


def _visible(attention: LayerAttention, positions: Sequence[int]) -> Bool[Tensor, "masks 1 query key"]:
    if attention.mask is not None:
        return attention.mask[:, :1, list(positions)]
    keys = torch.arange(attention.key.shape[2], device=attention.key.device)
    return (keys <= torch.tensor(positions, device=keys.device)[:, None])[None, None]


def _values(
    mixed: Float[Tensor, "batch head query d_model"], value: Projection, mass: Float[Tensor, "batch weighing query 1"]
) -> Float[Tensor, "batch head query d_value"]:
    """V_h x̃_h plus the bias as often as the weights add up to."""
    groups = mixed.shape[1] // len(value.weight)
    product = mixed @ at_least_float32(value.weight).repeat_interleave(groups, 0)
    if value.bias is None:
        return product
    return product + mass * at_least_float32(value.bias).repeat_interleave(groups, 0)[:, None]


def _linear(attention: LayerAttention, value: Projection, positions: Sequence[int]) -> bool:
    """Whether the values the layer used at these positions are the projection of its input, and nothing after it."""
    if value.then or attention.hidden is None:
        return False
    x = at_least_float32(attention.hidden[:, list(positions)])
    observed = at_least_float32(attention.value[:, :, list(positions)])
    expected = _values(x[:, None].expand(-1, len(value.weight), -1, -1), value, torch.ones_like(x[:, None, :, :1]))
    return bool((observed - expected).norm() <= _LINEAR * observed.norm())
