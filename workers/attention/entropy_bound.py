"""The smallest entropy that a row of attention can have, given how far its scores spread.

For n keys whose scores have, once centred, the Euclidean norm σ, the entropy in nats is at least

    B(n, σ) = log(1 + (n−1)β) + σ√(n(n−1)) β / (1 + (n−1)β),        β = exp(−σ√(n/(n−1)))

(Theorem 3.1 of Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", there
with an upper bound of σ out of weights and inputs). One high and n−1 equal scores attain it. B falls from log n at
σ = 0 towards n σ exp(−σ); trained models reach σ at which it underflows, so it is computed in the log domain.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs

_HALVINGS = 30  # of the interval of σ: relative accuracy 1e-9


def log_lower_bound(sigma: Float[Tensor, "*row"], keys: Float[Tensor, "*row"]) -> Float[Tensor, "*row"]:
    """Natural logarithm of B(keys, sigma); −∞ for a single key, whose row has no entropy. Give float64."""
    others = keys - 1
    fall = sigma * torch.sqrt(keys / others.clamp_min(1))
    beta = torch.exp(-fall)
    rest = others * beta  # Σ of the low keys' weights in units of the high one's
    # B / β, neither of whose terms underflows
    ratio = torch.where(rest > 0, torch.log1p(rest) / rest, 1.0) * others + sigma * torch.sqrt(keys * others) / (
        1 + rest
    )
    return ratio.log() - fall


def needed_sigma(
    entropy: Float[Tensor, "*row"], sigma: Float[Tensor, "*row"], keys: Float[Tensor, "*row"]
) -> Float[Tensor, "*row"]:
    """The smallest norm of centred scores at which this entropy is possible, given that at ``sigma`` it is.

    Solves B(keys, x) = entropy for x in [0, sigma]. Over ``sigma`` it says how near a row is to the bound: 1 for
    one high and otherwise equal scores.
    """
    low, high = torch.zeros_like(sigma), sigma
    wanted = entropy.log()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = log_lower_bound(middle, keys) > wanted  # B falls: x is larger
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return high


@dataclass(frozen=True)
class EntropyRows:
    """Rows of a block of queries, over their keys: a sink is no key, and weights are those given that one is seen."""

    weights: Float[Tensor, "batch head query key"]  # sum to 1; 0 where the key is hidden
    share: Float[Tensor, "batch head query"]  # what the keys have of the row's weight: 1 without a sink
    entropy_nats: Float[Tensor, "batch head query"]
    sigma: Float[Tensor, "batch head query"]  # Euclidean norm of the centred scores
    keys: Float[Tensor, "batch head query"]  # how many there are in the row


def of_block(attention: AttentionInputs, positions: range) -> EntropyRows:
    """Weights and statistics of the queries at ``positions`` (ascending)."""
    width = positions[-1] + 1
    hidden = rows.hidden_keys(attention, positions, width)
    scores = rows.scores(attention, positions, hidden)
    largest, where = scores.max(-1, keepdim=True)
    below = scores.sub_(largest)
    # the largest weight apart, so that the entropy of a row with hardly any else keeps its digits
    weights = below.exp().scatter_(-1, where, 0)
    rows.hidden_columns(below, hidden).masked_fill_(hidden, 0)
    rest = weights.sum(-1)
    entropy = rest.log1p() - (weights * below).sum(-1) / (1 + rest)
    weights.scatter_(-1, where, 1).div_((1 + rest)[..., None])
    keys = (width - hidden.sum(-1)).to(weights.dtype).expand(rest.shape)
    normalizers = rest.log1p() + largest[..., 0]
    share = torch.exp(normalizers - rows.with_sinks(normalizers, attention))
    centred = below.sub_((below.sum(-1) / keys)[..., None])
    rows.hidden_columns(centred, hidden).masked_fill_(hidden, 0)
    return EntropyRows(weights, share, entropy, centred.norm(dim=-1), keys)
