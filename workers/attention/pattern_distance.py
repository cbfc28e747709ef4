"""Distances between attention patterns: rows of the same query under two heads, of one model or of two.

Of two distributions p and q over the same outcomes:

    Jensen–Shannon divergence   JS = ½ Σ_j p_j log(2 p_j / (p_j + q_j)) + ½ Σ_j q_j log(2 q_j / (p_j + q_j))   in nats
    total variation             TV = ½ Σ_j |p_j − q_j|
    cosine distance             1 − p·q / (‖p‖ ‖q‖)

Two ways to JS. ``head_divergences`` compares every head with every other. With s = p + q and Σ_j s_j = 2 it is
log 2 + ½ (Σ p log p + Σ q log q − Σ s log s): the first two sums are a head's own, so that each pair of heads costs one
sum, one logarithm and one product per key. The difference of three sums leaves an error of some 1e-7 in float32,
which decides no assignment but would hide small distances. ``distances``, for the pairs that are stored, takes
d = (p − q) / s and ¼ Σ_j s_j [(1 + d_j) log(1 + d_j) + (1 − d_j) log(1 − d_j)], whose terms are all positive and 0
where p and q agree.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

LN_2 = math.log(2)
_TINY = 1e-37  # added to s, where p and q are both 0


def distances(
    first: Float[Tensor, "... outcome"], second: Float[Tensor, "... outcome"]
) -> Float[Tensor, "distance ..."]:
    """JS in nats, TV and cosine distance of each row; rows add up to 1. 0 where they are equal, and symmetric."""
    difference, total = first - second, first + second
    total_variation = difference.abs().sum(-1) / 2
    unit = torch.linalg.vector_norm
    apart = first / unit(first, dim=-1, keepdim=True) - second / unit(second, dim=-1, keepdim=True)
    cosine = apart.square_().sum(-1) / 2  # 1 − cos without the difference of two numbers near 1
    nearly_one = 1 - torch.finfo(total.dtype).eps  # (1 − d) log(1 − d) is 0 at d = 1, which log alone is not
    d = difference.div_(total + _TINY).clamp_(-nearly_one, nearly_one)
    upper, lower = d.log1p(), d.neg().log1p_()
    upper.addcmul_(upper, d).add_(lower).addcmul_(lower, d, value=-1)
    js_nats = torch.linalg.vecdot(upper, total) / 4
    return torch.stack([js_nats, total_variation, cosine])


def negative_entropies(pattern: Float[Tensor, "head query outcome"]) -> Float[Tensor, " head"]:
    """Σ p log p of each head, over all its rows, in nats and float64."""
    return _plogp(pattern.clone(), torch.empty_like(pattern))


def head_divergences(
    first: Float[Tensor, "head query outcome"],
    second: Float[Tensor, "other query outcome"],
    first_sums: Float[Tensor, " head"],
    second_sums: Float[Tensor, " other"],
) -> Float[Tensor, "head other"]:
    """JS of every head of ``first`` with every head of ``second``, added over the queries, in float64.

    The sums are their ``negative_entropies``. Beyond the arguments memory holds two tensors of the size of one.
    """
    mixture, logarithm = torch.empty_like(first), torch.empty_like(first)
    mixed = torch.stack([_plogp(torch.add(first, other, out=mixture), logarithm) for other in second], dim=1)
    return first.shape[1] * LN_2 + (first_sums[:, None] + second_sums[None] - mixed) / 2


def _plogp(values: Float[Tensor, "head query outcome"], logarithm: Tensor) -> Float[Tensor, " head"]:
    """Σ v log v over queries and outcomes; overwrites both tensors."""
    values.add_(_TINY)
    if values.device.type == "cpu":
        np.log(values.numpy(), out=logarithm.numpy())  # measured with AVX-512: a third of the time of torch's
    else:
        torch.log(values, out=logarithm)
    return torch.linalg.vecdot(values, logarithm).double().sum(-1)
