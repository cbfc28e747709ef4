"""Signed advantages of a block of queries, with the scores they belong to.

    A_ij = −δ_i·(v_j − y_i)

over the keys j of row i: positive where moving attention to key j lowers the loss. The gradient of the loss at a score
is −a_ij A_ij (times the derivative of a soft cap).

δ_i·y_i inside A comes from the row's own weights, in float32 or better, because the model's y is rounded to its dtype.
The two are compared: Σ_j a_ij A_ij = 0 where a row's weights sum to 1 (with a sink, which takes weight and gives
no value: −a_sink δ_i·y_i), so that a wrong mask, scale, head or sink shows as a departure.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention import rows
from workers.attention.inputs import LayerAttention

# Largest departure from the identity, in units of ‖δ_i‖‖y_i‖ + max_j |A_ij|, by the model's dtype: the output is
# rounded to that dtype. Measured on the test families: up to 3e-7 in float32, 2e-3 in bfloat16; wrong scores give a
# tenth and more.
IDENTITY_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class AdvantageRows:
    """Rows of a block of queries over keys 0 … last query. The tensors are the caller's, to overwrite as it likes."""

    hidden: Bool[Tensor, "masks heads query hidden"]  # keys that are not in the row, see rows.hidden_keys
    scores: Float[Tensor, "batch head query key"]  # −∞ where the key is hidden
    largest_score: Float[Tensor, "batch head query"]
    log_normalizers: Float[Tensor, "batch head query"]  # a_ij = exp(score − log normalizer); sinks are in it
    advantage: Float[Tensor, "batch head query key"]  # A; finite and without meaning where the key is hidden
    departure: Float[Tensor, "batch head query"]  # |Σ a A|, or what it differs by from −a_sink δ·y
    scale: Float[Tensor, "batch head query"]  # ‖δ‖‖y‖

    def residual(self, largest: Float[Tensor, "batch head query"]) -> Float[Tensor, "batch head query"]:
        """Relative departure from the identity, given the largest |A| of each row."""
        scale = self.scale + largest
        return torch.where(scale == 0, self.departure, self.departure / scale)


def of_block(
    attention: LayerAttention, positions: range, delta: Float[Tensor, "batch head query d_value"]
) -> AdvantageRows:
    """Scores and advantages of the queries at ``positions`` (ascending), whose δ are given."""
    width = positions[-1] + 1
    hidden = rows.hidden_keys(attention, positions, width)
    scores = rows.scores(attention, positions, hidden)
    largest_score = scores.amax(-1)
    weights = (scores - largest_score[..., None]).exp_()
    log_normalizers = rows.with_sinks(weights.sum(-1).log_() + largest_score, attention)

    descent = -rows.at_least_float32(delta)
    output = rows.at_least_float32(attention.output[:, rows.as_index(positions)].transpose(1, 2))
    advantage = rows.grouped_product(descent, rows.at_least_float32(attention.value[:, :, :width]))  # −δ·v so far
    baseline = weights.mul_(advantage).sum(-1) * torch.exp(largest_score - log_normalizers)  # −δ·y
    departure = (baseline - (descent * output).sum(-1)).abs_()
    scale = descent.norm(dim=-1) * output.norm(dim=-1)
    advantage.sub_(baseline[..., None])
    return AdvantageRows(hidden, scores, largest_score, log_normalizers, advantage, departure, scale)


def check_identity(residual: float, dtype: torch.dtype) -> None:
    """Raise KeyholeError (self_check_failed) if the largest relative departure is beyond the tolerance."""
    tolerance = IDENTITY_TOLERANCE[dtype]
    if not residual <= tolerance:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The measured rows depart from Σ a A = 0 by {residual:.3g} of ‖δ‖‖y‖ + max|A|; "
            f"{tolerance:g} is allowed in {str(dtype).removeprefix('torch.')}.",
            "Try dtype float32. If it stays, the scores measured are not those of the model: report it.",
        )
