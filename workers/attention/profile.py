"""Where the attention of a query goes: entropy, largest weight, and weight on chosen keys, from blocks of score rows.

With s_ij the scores of row i (soft cap applied), l_i = log Σ_j exp s_ij over its keys, and z_i = l_i, or
log(exp l_i + exp s_sink) where the head has a learned sink:

    a_ij = exp(s_ij − z_i)                    weights as the model uses them; their sum is exp(l_i − z_i)
    H_i = l_i − Σ_j exp(s_ij − l_i) s_ij      entropy over the keys, of the weights divided by their sum

H_i is computed as −log p_max − Σ_j p_j (s_ij − s_max), p = exp(s − l): no two large numbers are subtracted.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs


@dataclass(frozen=True)
class RowProfile:
    """Statistics of a block of rows. Weights are the model's; masses are sums of them over the keys named."""

    entropy_nats: Float[Tensor, "batch head query"]
    top_weight: Float[Tensor, "batch head query"]
    top_key: Int[Tensor, "batch head query"]  # the first where several have the largest weight
    self_weight: Float[Tensor, "batch head query"]
    previous_weight: Float[Tensor, "batch head query"]  # NaN at query 0
    local_mass: Float[Tensor, "batch head query"]  # the nearest keys, the query's own position included
    sink_mass: Float[Tensor, "batch head query"]  # key 0
    no_key_mass: Float[Tensor, "batch head query"]  # on a learned sink
    keys: Int[Tensor, "masks heads query"]  # number of keys in the row


def profile_of_block(inputs: AttentionInputs, positions: range, local_keys: int) -> RowProfile:
    """Profile of the queries at ``positions`` (ascending); in float32, or float64 if the model is."""
    width = positions[-1] + 1
    hidden = rows.hidden_keys(inputs, positions, width)
    scores = rows.scores(inputs, positions, hidden)
    top_key = _argmax(scores)
    largest = scores.gather(-1, top_key[..., None])[..., 0]
    shares = scores.softmax(-1)  # among the keys
    top_share = shares.gather(-1, top_key[..., None])[..., 0]
    below = scores.sub_(largest[..., None])
    rows.hidden_columns(below, hidden).masked_fill_(hidden, 0)  # their share is 0, and 0 · −∞ is not a number
    entropy = -top_share.log() - below.mul_(shares).sum(-1)
    among_keys = largest - top_share.log()
    normalizers = rows.with_sinks(among_keys, inputs)
    to_keys = torch.exp(among_keys - normalizers)

    queries = torch.arange(positions.start, width, positions.step, device=scores.device)
    near = queries[:, None] - torch.arange(local_keys, device=scores.device)  # from the query's own position back
    index = near.clamp(min=0).expand(*shares.shape[:2], -1, -1)
    near_shares = shares.gather(-1, index).masked_fill_(near < 0, 0) * to_keys[..., None]
    return RowProfile(
        entropy_nats=entropy,
        top_weight=top_share * to_keys,
        top_key=top_key,
        self_weight=near_shares[..., 0],
        previous_weight=near_shares[..., 1].masked_fill(queries == 0, torch.nan),
        local_mass=near_shares.sum(-1),
        sink_mass=shares[..., 0] * to_keys,
        no_key_mass=-torch.expm1(among_keys - normalizers),
        keys=width - hidden.sum(-1),
    )


def _argmax(scores: Float[Tensor, "*row key"]) -> Int[Tensor, "*row"]:
    """Place of the largest entry of each row, the first of equal ones."""
    if scores.device.type == "cpu":  # NumPy's is ten times faster there (measured on rows of 1,000)
        return torch.from_numpy(scores.numpy().argmax(-1))
    return scores.argmax(-1)


def excess_over_bounds(profile: RowProfile) -> Float[Tensor, ""]:
    """How far any row leaves 0 ≤ H ≤ log(number of keys), or any of its masses exceeds 1; at most 0 if none does.

    NaN in anything but the previous weight of query 0 stays NaN.
    """
    beyond = torch.maximum(
        -profile.entropy_nats, profile.entropy_nats - profile.keys.to(profile.entropy_nats.dtype).log()
    )
    for mass in (profile.top_weight, profile.local_mass, profile.sink_mass, profile.no_key_mass):
        beyond = torch.maximum(beyond, torch.maximum(mass - 1, -mass))
    return beyond.max()


@dataclass(frozen=True)
class RowFromVectors:
    """One row of each head another way, to check profiles by."""

    entropy_nats: Float[Tensor, "batch head"]
    log_normalizer: Float[Tensor, "batch head"]  # over the keys
    output: Float[Tensor, "batch head d_value"]  # Σ_j a_ij v_j
    size: Float[Tensor, "batch head"]  # Σ_j a_ij ‖v_j‖, to measure a difference of outputs by


def row_from_vectors(inputs: AttentionInputs, position: int) -> RowFromVectors:
    """H = l − c q·k̄ with k̄ = Σ_j p_j k_j; with a soft cap, which no k̄ goes through, H = l − Σ_j p_j s_j.

    In float64: the difference of two numbers of the size of the scores would else lose what scores of hundreds leave.
    """
    place, width = range(position, position + 1), position + 1
    query = inputs.query[:, :, position:width].double()
    key, value = inputs.key[:, :, :width].double(), inputs.value[:, :, :width].double()
    scores = rows.capped_scores(query, key, inputs.scaling, inputs.softcap)
    hidden = rows.hidden_keys(inputs, place, width)
    rows.hidden_columns(scores, hidden).masked_fill_(hidden, -torch.inf)
    among_keys = scores.logsumexp(-1)
    shares = torch.exp(scores - among_keys[..., None])
    if inputs.softcap is None:
        mean_key = rows.grouped_product(shares, key.transpose(-1, -2))
        mean_score = inputs.scaling * (query * mean_key).sum(-1)
    else:
        mean_score = (shares * scores.masked_fill(scores.isinf(), 0)).sum(-1)
    weights = shares * torch.exp(among_keys - rows.with_sinks(among_keys, inputs))[..., None]
    output = rows.grouped_product(weights, value.transpose(-1, -2))
    size = rows.grouped_product(weights, value.norm(dim=-1, keepdim=True).transpose(-1, -2))
    return RowFromVectors((among_keys - mean_score)[..., 0], among_keys[..., 0], output[:, :, 0], size[:, :, 0, 0])
