"""How far scores can spread at most, from a layer's weights and its inputs.

Where scores are c x_i·W_Q W_Kᵀ·x_j, a row of them is c X W_K W_Qᵀ x_i, and its norm at most

    σ = c ‖W_K W_Qᵀ‖₂ ‖X Xᵀ‖₂,        X the inputs at all positions, one a row

A rotary embedding, and norms or clipping of q and k, come between (``obstacles``): then this bounds nothing. Biases do
not stand in the way. That of the keys adds q_i·b_K to a whole row, which centring takes off again; that of the queries
is one more row of W_Q, for an input that is always 1: then σ is that of the matrices so extended. A soft cap only makes
scores smaller (but under one the keys' bias is kept, as one more row of W_K), and a mask rows shorter.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workers.attention.inputs import LayerAttention
from workers.attention.projections import Projection, Step, projections
from workers.attention.rows import at_least_float32
from workers.attention.spectral import bilinear_norm, gram_norm

_SAMPLES = 8  # positions of one sequence at which q and k are rebuilt


@dataclass(frozen=True)
class ScoreWeights:
    """What the matrices of one attention module give."""

    norm: Float[Tensor, " head"]  # ‖W_K W_Qᵀ‖₂ without biases; NaN where the module has no such matrices
    extended_norm: Float[Tensor, " head"]  # of the matrices extended by biases
    biased: bool  # whether extended_norm is another one than norm
    obstacles: tuple[Step, ...] | None  # none where there are no matrices; empty where σ bounds the rows

    @property
    def bounds(self) -> bool:
        return self.obstacles == ()


@dataclass(frozen=True)
class ScoreBound:
    """Both factors of σ, and σ itself."""

    weights: ScoreWeights
    input_norm: Float[Tensor, " batch"]  # ‖X Xᵀ‖₂
    sigma: Float[Tensor, "batch head"]  # NaN where it bounds nothing


def of_layer(attention: LayerAttention) -> ScoreBound:
    """The bound of every row of the layer, by sequence and head. The layer must come with its input."""
    assert attention.hidden is not None
    weights = _weights(attention)
    x = at_least_float32(attention.hidden)
    input_norm = gram_norm(x)
    if not weights.bounds:
        return ScoreBound(weights, input_norm, torch.full_like(input_norm, torch.nan)[:, None] * weights.norm)
    extended = gram_norm(torch.cat([x, x.new_ones(*x.shape[:2], 1)], -1)) if weights.biased else input_norm
    return ScoreBound(weights, input_norm, attention.scaling * extended.double()[:, None] * weights.extended_norm)


def rebuilt_residual(attention: LayerAttention) -> Float[Tensor, ""]:
    """Largest departure of q and k, rebuilt from the input at a few positions, in units of their norms.

    Shows a matrix that is not the model's, or a step between that nobody knew of. Only where σ bounds the rows.
    """
    assert attention.hidden is not None
    found = projections(attention.module, attention.query.shape[1], attention.key.shape[1])
    positions = slice(None, None, max(1, attention.query.shape[2] // _SAMPLES))
    x = at_least_float32(attention.hidden[:1, positions])
    departures = []
    for projection, seen in ((found.query, attention.query), (found.key, attention.key)):
        assert projection is not None and not projection.then
        bias = None if projection.bias is None else at_least_float32(projection.bias)
        rebuilt = Projection(at_least_float32(projection.weight), bias, ())(x)
        given = at_least_float32(seen[:1, :, positions])
        size = given.norm(dim=-1).clamp_min(torch.finfo(given.dtype).tiny)
        departures.append(((rebuilt - given).norm(dim=-1) / size).max())
    return torch.maximum(*departures)


# by attention module, with the version of its parameters: computed once for all shards of a job
_known: WeakKeyDictionary[nn.Module, tuple[int, ScoreWeights]] = WeakKeyDictionary()


def _weights(attention: LayerAttention) -> ScoreWeights:
    version = sum(parameter._version for parameter in attention.module.parameters())
    known = _known.get(attention.module)
    if known is None or known[0] != version:
        known = version, _computed(attention)
        _known[attention.module] = known
    return known[1]


def _computed(attention: LayerAttention) -> ScoreWeights:
    heads = attention.query.shape[1]
    found = projections(attention.module, heads, attention.key.shape[1])
    query, key = found.query, found.key
    if query is None or key is None:
        nothing = torch.full((heads,), torch.nan, dtype=torch.float64, device=attention.query.device)
        return ScoreWeights(nothing, nothing, biased=False, obstacles=None)
    norm = bilinear_norm(query.weight, key.weight)
    of_keys = None if attention.softcap is None else key.bias
    biased = any(bias is not None and bool(bias.any()) for bias in (query.bias, of_keys))
    extended = bilinear_norm(_extended(query.weight, query.bias), _extended(key.weight, of_keys)) if biased else norm
    return ScoreWeights(norm, extended, biased, query.then)


def _extended(weight: Float[Tensor, "head d_model d"], bias: Tensor | None) -> Float[Tensor, "head d_model_1 d"]:
    row = torch.zeros_like(weight[:, :1]) if bias is None else bias[:, None]
    return torch.cat([weight, row], 1)
