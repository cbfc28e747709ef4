"""What one step of gradient descent, taken for one query through one head, does to that query's own row.

With the inputs x and δ held, the value matrix steps by −η_V ∂L/∂V = −η_V δ_i x̃_iᵀ, x̃_i = Σ_j a_ij x_j (eq. 10 of "Stuck
in a Loop"), and the scores by −η_s ∂L/∂s_ij (30):

    ΔA_ij = η_V ‖δ_i‖² x̃_i·(x_j − x̃_i)        (29)            Δs_ij = η_s a_ij A_ij        (30)

    log a⁺_ij/a⁺_ik − log a_ij/a_ik = Δs_ij − Δs_ik        (31)

Both are linear in their learning rate. (29) follows from Δv_j = −η_V δ_i x̃_i·x_j and Δy_i = Σ_j a_ij Δv_j
= −η_V δ_i ‖x̃_i‖² (33), and holds whatever the weights add up to, hence with a sink too. A step on the bias of V would
add η_V ‖δ_i‖² m (1 − m) to every ΔA of the row, m = Σ_j a_ij: nothing without a sink, and with one nothing to any
difference of two keys; it is left out, as V alone steps here. The sink's own score is held too.

ΔA is given as a gain, in units of η_V ‖δ_i‖² X_i², X_i² = Σ_j a_ij ‖x_j‖². For orthogonal inputs of equal length the
gain is a_ij − Σ_m a_im², the article's example; |gain_j| ≤ 1 + ‖x_j‖/X_i.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workers.attention import rows
from workers.attention.advantage import AdvantageRows
from workers.attention.inputs import AttentionInputs


@dataclass(frozen=True)
class Gains:
    """Changes of advantage in a block of queries, in units of η_V ‖δ‖² X²."""

    gain: Float[Tensor, "batch head query key"]  # finite and without meaning where the key is hidden
    x_squared: Float[Tensor, "batch head query"]  # X²
    surplus: Float[Tensor, "batch head query"]  # Σ_j a_ij gain_j as it must be: (1 − m) ‖x̃‖² / X²


def gains(
    weights: Float[Tensor, "batch head query key"],
    x: Float[Tensor, "batch key d_model"],
    lengths: Float[Tensor, "batch key"],
    *,
    sums_to_one: bool,
) -> Gains:
    """Gains of every key under the given attention weights, 0 where a key is hidden; ``lengths`` are the ‖x_j‖."""
    batch, heads, queries, keys = weights.shape
    flat = weights.reshape(batch, heads * queries, keys)
    mixed = flat @ x  # x̃
    mixed_squared = mixed.norm(dim=-1, keepdim=True).square_()
    x_squared = flat @ lengths.square()[..., None]
    gain = (mixed @ x.transpose(-1, -2)).sub_(mixed_squared).div_(x_squared)
    if sums_to_one:
        surplus = torch.zeros_like(x_squared)
    else:
        surplus = (1 - flat.sum(-1, keepdim=True)) * mixed_squared / x_squared
    shape = (batch, heads, queries)
    return Gains(gain.view(*shape, keys), x_squared.view(shape), surplus.view(shape))


@dataclass(frozen=True)
class TopRows:
    """The top key of each query against the runner-up and the rest.

    The last six are NaN where the query has no credit (δ = 0) or a single key. Advantages are in units of ‖δ‖, growths
    in units of η_s ‖δ‖.
    """

    top: Int[Tensor, "batch head query"]
    runner_up: Int[Tensor, "batch head query"]  # −1 in a row of one key
    log_odds_runner_up: Float[Tensor, "batch head query"]
    log_odds_rest: Float[Tensor, "batch head query"]
    gain_top: Float[Tensor, "batch head query"]
    gain_runner_up: Float[Tensor, "batch head query"]
    advantage_top: Float[Tensor, "batch head query"]
    advantage_runner_up: Float[Tensor, "batch head query"]
    odds_growth_runner_up: Float[Tensor, "batch head query"]
    odds_growth_rest: Float[Tensor, "batch head query"]
    defined: Bool[Tensor, "batch head query"]


def top_rows_(
    found: AdvantageRows,
    weights: Float[Tensor, "batch head query key"],
    gained: Gains,
    inputs: AttentionInputs,
    credited: Bool[Tensor, "batch head query"],
) -> tuple[TopRows, Float[Tensor, "batch head query"]]:
    """The rows, and the departure of Σ_j a_ij gain_j from what it must be. Overwrites scores and weights.

    ``found`` is of unit δ. Where the top key holds half of the weight or more, its own gain and advantage come from the
    others: they nearly vanish there, and the difference of two nearly equal numbers would leave a random sign.
    """
    score, top = found.scores.max(-1, keepdim=True)
    found.scores.scatter_(-1, top, -torch.inf)
    next_score, runner_up = found.scores.max(-1, keepdim=True)
    log_rest = rows.with_sinks(found.scores.logsumexp(-1), inputs)
    weight = weights.gather(-1, top)
    next_weight = weights.gather(-1, runner_up)
    weights.scatter_(-1, top, 0)  # from here on those of the rest
    share_of_rest = (log_rest - found.log_normalizers).exp_().clamp_min_(torch.finfo(weights.dtype).tiny)

    gain_direct, gain_next = gained.gain.gather(-1, top), gained.gain.gather(-1, runner_up)
    gain_rest = _weighted(weights, gained.gain)
    advantage_direct, advantage_next = found.advantage.gather(-1, top), found.advantage.gather(-1, runner_up)
    advantage_rest = _weighted(weights, found.advantage)
    departure = (weight * gain_direct + gain_rest)[..., 0].sub_(gained.surplus).abs_()
    if inputs.sinks is None:
        mostly = weight >= 0.5
        gain = torch.where(mostly, -gain_rest / weight, gain_direct)
        advantage = torch.where(mostly, -advantage_rest / weight, advantage_direct)
    else:
        gain, advantage = gain_direct, advantage_direct
    step = weight * advantage
    mean_step_of_rest = _weighted(weights.square_(), found.advantage)[..., 0] / share_of_rest
    several = next_score > -torch.inf
    defined = several[..., 0] & credited

    def where_defined(values: Tensor) -> Tensor:
        return values.masked_fill(~defined, torch.nan)

    return (
        TopRows(
            top=top[..., 0],
            runner_up=runner_up.masked_fill_(~several, -1)[..., 0],
            log_odds_runner_up=(score - next_score)[..., 0],
            log_odds_rest=score[..., 0] - log_rest,
            gain_top=where_defined(gain[..., 0]),
            gain_runner_up=where_defined(gain_next[..., 0]),
            advantage_top=where_defined(advantage[..., 0]),
            advantage_runner_up=where_defined(advantage_next[..., 0]),
            odds_growth_runner_up=where_defined((step - next_weight * advantage_next)[..., 0]),
            odds_growth_rest=where_defined(step[..., 0] - mean_step_of_rest),
            defined=defined,
        ),
        departure,
    )


def _weighted(
    weights: Float[Tensor, "batch head query key"], values: Float[Tensor, "batch head query key"]
) -> Float[Tensor, "batch head query 1"]:
    return (weights * values).sum(-1, keepdim=True)


BAND_SUMS = ("sources", "gain_positive", "step_positive", "gain", "abs_step")


def band_sums(
    weights: Float[Tensor, "batch head query key"],
    gain: Float[Tensor, "batch head query key"],
    advantage: Float[Tensor, "batch head query key"],
    counted: Bool[Tensor, "batch head query key"],
    bands: Sequence[float],
) -> Float[Tensor, "5 batch head band"]:
    """BAND_SUMS over the counted query-key pairs, by attention weight: from bands[k] up to bands[k − 1]; the last is 0.

    As one product of bands by quantities, which takes a third of the time of sums under masks. Counts are exact up to
    2**24 pairs of a head and block.
    """
    within = weights.new_empty(len(bands), *weights.shape)
    torch.ge(weights, 0, out=within[-1]).mul_(counted)
    for band, lower in enumerate(bands[:-1]):
        torch.ge(weights, lower, out=within[band]).mul_(within[-1])
    within[1:] -= within[:-1].clone()
    quantities = weights.new_empty(len(BAND_SUMS), *weights.shape)
    quantities[0] = 1
    torch.gt(gain, 0, out=quantities[1])
    torch.gt(advantage, 0, out=quantities[2])
    quantities[3] = gain
    torch.mul(weights, advantage, out=quantities[4]).abs_()
    left, right = (each.flatten(-2).permute(1, 2, 0, 3) for each in (quantities, within))
    return (left @ right.transpose(-1, -2)).permute(2, 0, 1, 3).double()
