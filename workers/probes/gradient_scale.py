"""Gradient scale: how far attention and advantage spread within each query.

    D_a(i) = max_j a_ij / median_j a_ij        D_c(i) = max_j |A_ij| / median_j |A_ij|,   A_ij = −δ_i·(v_j − y_i)

over the keys j in row i (j ≤ i, fewer under a sliding window), equation 14 of "Stuck in a Loop"
(https://hyperstition.cc/stuck-in-a-loop). Weights a are those after soft cap and softmax; a sink takes weight, gives
no value and is no key, so D_a does not depend on it and y lacks its share. δ_i = ∂L/∂y_i, with the loss L of
``credit``. A query whose output no loss depends on (the last position) has δ = 0 and D_c NaN.

Self-check: Σ_j a_ij A_ij = −a_i,sink δ_i·y_i, which is 0 without a sink, where δ_i·y_i is taken from the output
of the forward pass and the rest from the row that was measured.

Beyond the model's own pass, memory holds one layer and one block of rows.
"""

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from workers.attention import rows, seam, spread
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.next_token import next_token_losses_
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement, key_columns

# Largest departure from the identity, in units of ‖δ_i‖‖y_i‖ + max_j |A_ij|, by the model's dtype: the output is
# rounded to that dtype. Measured on the test families: up to 3e-7 in float32, 2e-3 in bfloat16; wrong scores give a
# tenth and more.
IDENTITY_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2}


def measure(
    loaded: LoadedModel,
    parameters: GradientScaleParameters,
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
) -> Measurement:
    """Measure sequences ``first_sequence`` … of the data set, whose tokens are given; at most ``batch`` in one pass.

    Raises KeyholeError (self_check_failed) when the loss is not finite or the identity does not hold,
    (model_unsupported) when the model does not call the seam once per layer.
    """
    model, architecture = loaded.model, loaded.architecture
    sequences, length = token_ids.shape
    queries = parameters.queries.positions(length)
    spreads = torch.empty(2, architecture.layers, architecture.heads, sequences, len(queries), device=model.device)
    observer = _SpreadObserver(queries, spreads)
    total_loss = 0.0
    for first in range(0, sequences, parameters.batch):
        batch = torch.as_tensor(token_ids[first : first + parameters.batch], dtype=torch.int64, device=model.device)
        observer.sequences = slice(first, first + len(batch))
        with torch.enable_grad(), seam.observing(model, [observer], credit=parameters.credit):
            logits = model(batch, use_cache=False).logits
            losses, gradient = next_token_losses_(logits, batch, parameters.credit)
            torch.autograd.backward(logits, gradient)
        total_loss += float(losses.double().mean(1).sum())
    checks = {"loss_nats": total_loss / sequences, "max_identity_residual": float(observer.residual)}
    _check(checks, model.dtype)
    log10_d_a, log10_d_c = spreads.cpu().numpy()
    keys = key_columns(
        architecture.layers, architecture.heads, range(first_sequence, first_sequence + sequences), queries
    )
    columns = {**keys, "log10_d_a": log10_d_a.reshape(-1), "log10_d_c": log10_d_c.reshape(-1)}
    return Measurement(rows={TABLE.name: columns}, checks=checks)


class _SpreadObserver:
    """Fills in log10 D_a and log10 D_c of each layer when the backward pass reaches it."""

    def __init__(self, queries: range, spreads: Float[Tensor, "statistic layer head sequence query"]) -> None:
        self.queries = queries
        self.spreads = spreads
        self.sequences = slice(0, 0)  # those of the current forward pass
        self.residual = torch.zeros((), device=spreads.device)  # largest departure from the identity so far

    def forward(self, attention: LayerAttention) -> None:
        """Nothing: scores are recomputed when δ is there, so that no layer's rows wait for it."""

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        target = self.spreads[:, attention.layer, :, self.sequences]  # statistic, head, sequence, query
        done = 0
        for positions in rows.query_blocks(self.queries, attention):
            credit = delta[:, rows.as_index(positions)].transpose(1, 2)
            *block, residual = spreads_of_block(attention, positions, credit)
            part = slice(done, done + len(positions))
            for statistic, values in enumerate(block):
                target[statistic, :, :, part] = values.transpose(0, 1)
            # NaN stays: torch.maximum propagates it
            self.residual = torch.maximum(self.residual, residual.max().to(self.residual.dtype))
            done += len(positions)


def spreads_of_block(
    attention: LayerAttention, positions: range, delta: Float[Tensor, "batch head query d_value"]
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    """log10 D_a, log10 D_c and the relative departure from the identity of the queries at ``positions``."""
    width = positions[-1] + 1
    hidden = rows.hidden_keys(attention, positions, width)
    padding = spread.padding(hidden, width)
    scores = rows.scores(attention, positions, hidden)
    largest_score = scores.amax(-1)
    weights = (scores - largest_score[..., None]).exp_()
    normalizers = rows.with_sinks(weights.sum(-1).log_() + largest_score, attention)
    log10_d_a = spread.log10_spread_of_weights_(scores, largest_score, padding)

    delta = rows.at_least_float32(delta)
    output = rows.at_least_float32(attention.output[:, rows.as_index(positions)].transpose(1, 2))
    advantage = rows.grouped_product(delta, rows.at_least_float32(attention.value[:, :, :width]))  # δ·v so far
    # δ·y from the row's own weights, in float32: the model's y is rounded to its dtype
    baseline = weights.mul_(advantage).sum(-1) * torch.exp(largest_score - normalizers)
    log10_d_c, largest = spread.log10_spread_(advantage.sub_(baseline[..., None]).abs_(), padding)
    residual = (baseline - (delta * output).sum(-1)).abs_()
    scale = delta.norm(dim=-1) * output.norm(dim=-1) + largest
    return log10_d_a, log10_d_c, torch.where(scale == 0, residual, residual / scale)


def _check(checks: dict[str, float], dtype: torch.dtype) -> None:
    if not np.isfinite(checks["loss_nats"]):
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The model's loss is {checks['loss_nats']} nats.",
            "The logits overflowed: try dtype float32, and look whether the model's weights are finite.",
        )
    tolerance = IDENTITY_TOLERANCE[dtype]
    if not checks["max_identity_residual"] <= tolerance:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The measured rows depart from Σ a A = 0 by {checks['max_identity_residual']:.3g} of ‖δ‖‖y‖ + max|A|; "
            f"{tolerance:g} is allowed in {str(dtype).removeprefix('torch.')}.",
            "Try dtype float32. If it stays, the scores measured are not those of the model: report it.",
        )
