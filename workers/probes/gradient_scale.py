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

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from workers.attention import advantage, rows, spread
from workers.attention.inputs import LayerAttention, Outputs
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement, key_columns
from workers.probes.passes import PassProbe


class SpreadCollector:
    """Fills in log10 D_a and log10 D_c of each layer when the backward pass reaches it."""

    def __init__(self, loaded: LoadedModel, parameters: GradientScaleParameters, sequences: range, length: int) -> None:
        self._architecture, self._dtype = loaded.architecture, loaded.model.dtype
        self._sequences = sequences
        self._queries = parameters.queries.positions(length)
        shape = (2, self._architecture.layers, self._architecture.heads, len(sequences), len(self._queries))
        self._spreads = torch.empty(shape, device=loaded.model.device)  # statistic, layer, head, sequence, query
        self._batch = slice(0, 0)  # sequences of the current pass
        self._residual = torch.zeros((), device=loaded.model.device)  # largest departure from the identity so far

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        """Nothing: scores are recomputed when δ is there, so that no layer's rows wait for it."""

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        target = self._spreads[:, attention.layer, :, self._batch]  # statistic, head, sequence, query
        done = 0
        for positions in rows.query_blocks(self._queries, attention):
            credit = delta[:, rows.as_index(positions)].transpose(1, 2)
            *block, residual = spreads_of_block(attention, positions, credit)
            part = slice(done, done + len(positions))
            for statistic, values in enumerate(block):
                target[statistic, :, :, part] = values.transpose(0, 1)
            # NaN stays: torch.maximum propagates it
            self._residual = torch.maximum(self._residual, residual.max().to(self._residual.dtype))
            done += len(positions)

    def result(self) -> Measurement:
        residual = float(self._residual)
        advantage.check_identity(residual, self._dtype)
        log10_d_a, log10_d_c = self._spreads.cpu().numpy()
        keys = key_columns(self._architecture.layers, self._architecture.heads, self._sequences, self._queries)
        columns = {**keys, "log10_d_a": log10_d_a.reshape(-1), "log10_d_c": log10_d_c.reshape(-1)}
        return Measurement(rows={TABLE.name: columns}, checks={"max_identity_residual": residual})


PROBE = PassProbe(SpreadCollector, backward=True)


def spreads_of_block(
    attention: LayerAttention, positions: range, delta: Float[Tensor, "batch head query d_value"]
) -> tuple[Float[Tensor, "batch head query"], Float[Tensor, "batch head query"], Float[Tensor, "batch head query"]]:
    """log10 D_a, log10 D_c and the relative departure from the identity of the queries at ``positions``."""
    found = advantage.of_block(attention, positions, delta)
    padding = spread.padding(found.hidden, positions[-1] + 1)
    log10_d_a = spread.log10_spread_of_weights_(found.scores, found.largest_score, padding)
    log10_d_c, largest = spread.log10_spread_(found.advantage.abs_(), padding)
    return log10_d_a, log10_d_c, found.residual(largest)
