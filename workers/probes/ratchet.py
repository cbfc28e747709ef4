"""Ratchet: does one gradient step pull the top key of a query further ahead?

For every query i and head, with unit learning rates (everything is linear in them), the change of advantage by a step
on the value matrix and the change of the attention odds by a step on the scores,

    ΔA_ij = η_V ‖δ_i‖² x̃_i·(x_j − x̃_i)     Δs_ij = η_s a_ij A_ij     Δ log(a_ij/a_ik) = Δs_ij − Δs_ik

equations 29 to 31 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop): for the top key against the
runner-up and against the rest, Δ log(a_top/(1 − a_top)) = Δs_top − Σ_{j≠top} a_j Δs_j/(1 − a_top) to first order, and
for all sources by their attention weight. The gradients are the query's own, through its own head: heads that share
V (grouped queries) and other queries would move it too. ``workers/attention/ratchet.py`` has the formulas and units.

V must act on x, the input of the attention module: latent attention and clipped values are refused.

Self-checks: Σ_j a_ij A_ij = 0 (see ``workers/attention/advantage.py``), Σ_j a_ij ΔA_ij = 0 without a sink, and
v = x W_V + b at some positions of every layer. Beyond the model's own pass, memory holds one layer and one block of
rows.
"""

from dataclasses import fields

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.ratchet import BAND_TABLE, BANDS, TABLE, RatchetParameters
from workers.attention import advantage, ratchet, rows
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.projections import projections
from workers.attention.ratchet import TopRows
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement, key_columns
from workers.probes.passes import PassProbe

# Largest |Σ_j a_ij gain_j|, in float32 whatever the model's dtype. Measured: 1.1e-6 on the test families, 1.3e-6 on
# SmolLM2-135M; weights of another head give a tenth and more.
GAIN_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 1e-4}
# Largest ‖x W_V + b − v‖ / ‖v‖ by the model's dtype, to which v is rounded. Measured on the test families: 4e-7 in
# float32, 3.4e-3 in bfloat16.
VALUE_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}
CHECKED_POSITIONS = 16  # of each sequence and layer, for v = x W_V + b

FLOATS = tuple(column.name for column in TABLE.columns if column.type == "float4")
KEYS = ("top_key", "runner_up")


class RatchetCollector:
    """Fills in the rows of each layer when the backward pass reaches it."""

    def __init__(self, loaded: LoadedModel, parameters: RatchetParameters, sequences: range, length: int) -> None:
        self._architecture, self._dtype = loaded.architecture, loaded.model.dtype
        self._sequences = sequences
        self._queries = parameters.queries.positions(length)
        device = loaded.model.device
        layers, heads, each = self._architecture.layers, self._architecture.heads, len(sequences)
        shape = (layers, heads, each, len(self._queries))
        self._floats = torch.empty((len(FLOATS), *shape), device=device)
        self._keys = torch.empty((len(KEYS), *shape), dtype=torch.int32, device=device)
        # sum, layer, head, sequence, band
        bands = (len(ratchet.BAND_SUMS), layers, heads, each, len(BANDS))
        self._bands = torch.zeros(bands, dtype=torch.float64, device=device)
        self._batch = slice(0, 0)  # sequences of the current pass
        # largest departures so far: of Σ a A, of Σ a ΔA, of v
        self._departures = torch.zeros(3, dtype=torch.float64, device=device)

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        """Whether V acts on x here; everything else waits for δ."""
        self._depart(2, value_departure(attention))

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        assert attention.hidden is not None
        layer = attention.layer
        x = rows.at_least_float32(attention.hidden)
        lengths = x.norm(dim=-1)
        done = 0
        # a block holds a mixed input x̃ per row beside the row itself
        for positions in rows.query_blocks(self._queries, attention, at_least=x.shape[-1]):
            credit = delta[:, rows.as_index(positions)].transpose(1, 2)
            top, floats, bands, identity, departure = _block(attention, positions, credit, x, lengths)
            part = slice(done, done + len(positions))
            target = self._floats[:, layer, :, self._batch, part]
            for number, name in enumerate(FLOATS):
                target[number] = floats[name].transpose(0, 1)
            for number, keys in enumerate((top.top, top.runner_up)):
                self._keys[number, layer, :, self._batch, part] = keys.transpose(0, 1).int()
            self._bands[:, layer, :, self._batch] += bands.transpose(1, 2)
            self._depart(0, identity)
            self._depart(1, departure)
            done += len(positions)

    def _depart(self, number: int, departure: Tensor) -> None:
        # NaN stays: torch.maximum propagates it
        self._departures[number] = torch.maximum(self._departures[number], departure.max().double())

    def result(self) -> Measurement:
        identity, gain, value = self._departures.tolist()
        advantage.check_identity(identity, self._dtype)
        _check(gain, GAIN_TOLERANCE[self._dtype], "The gains depart from Σ a ΔA = 0 by {:.3g} of their unit")
        _check(value, VALUE_TOLERANCE[self._dtype], "The values depart from x W_V + b by {:.3g} of their norm")
        layers, heads = self._architecture.layers, self._architecture.heads
        keys = key_columns(layers, heads, self._sequences, self._queries)
        columns = dict(zip(KEYS, self._keys.flatten(1).cpu().numpy(), strict=True))
        columns |= dict(zip(FLOATS, self._floats.flatten(1).cpu().numpy(), strict=True))
        return Measurement(
            rows={TABLE.name: {**keys, **columns}, BAND_TABLE.name: self._band_columns()},
            checks={"max_identity_residual": identity, "max_gain_residual": gain, "max_value_residual": value},
        )

    def _band_columns(self) -> dict[str, np.ndarray]:
        architecture = self._architecture
        keys = key_columns(architecture.layers, architecture.heads, self._sequences, range(len(BANDS)))
        band = keys.pop("query").astype(np.int16)
        sums = dict(zip(ratchet.BAND_SUMS, self._bands.flatten(1).cpu().numpy(), strict=True))
        with np.errstate(invalid="ignore"):
            means = {f"mean_{name}": (sums[name] / sums["sources"]).astype(np.float32) for name in ("gain", "abs_step")}
        counts = {name: sums[name].astype(np.int64) for name in ("sources", "gain_positive", "step_positive")}
        return {**keys, "band": band, **counts, **means}


PROBE = PassProbe(RatchetCollector, backward=True, hidden=True)


def _block(
    attention: LayerAttention,
    positions: range,
    delta: Float[Tensor, "batch head query d_value"],
    x: Float[Tensor, "batch position d_model"],
    lengths: Float[Tensor, "batch position"],
) -> tuple[TopRows, dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Rows of a block, its float columns and band sums, and its departures from the two identities."""
    size = delta.double().norm(dim=-1)  # the square of a small δ is no float32
    credited = size > 0
    unit = torch.where(credited[..., None], delta / size[..., None], 0).to(x.dtype)
    found = advantage.of_block(attention, positions, unit)
    weights = (found.scores - found.log_normalizers[..., None]).exp_()
    keys = slice(0, positions[-1] + 1)
    gained = ratchet.gains(weights, x[:, keys], lengths[:, keys], sums_to_one=attention.sinks is None)
    identity = found.residual(_largest_magnitude(found))
    several = (weights.shape[-1] - found.hidden.sum(-1)) > 1
    counted = (credited & several)[..., None].expand(weights.shape).clone()
    rows.hidden_columns(counted, found.hidden).masked_fill_(found.hidden, False)
    bands = ratchet.band_sums(weights, gained.gain, found.advantage, counted, BANDS)
    top, departure = ratchet.top_rows_(found, weights, gained, attention, credited)
    floats = {field.name: getattr(top, field.name) for field in fields(top) if field.name in FLOATS}
    floats |= {"log10_delta": size.log10(), "log10_x_squared": gained.x_squared.log10()}
    return top, floats, bands, identity, departure


def _largest_magnitude(found: advantage.AdvantageRows) -> Float[Tensor, "batch head query"]:
    """max_j |A_ij| over the row."""
    magnitudes = found.advantage.abs()
    rows.hidden_columns(magnitudes, found.hidden).masked_fill_(found.hidden, 0)
    return magnitudes.amax(-1)


def value_departure(attention: LayerAttention) -> Float[Tensor, "batch kv_head position"]:
    """‖x W_V + b − v‖ by the largest ‖v‖ of the head, at some positions.

    Raises KeyholeError (model_unsupported) where V does not act on x.
    """
    assert attention.hidden is not None
    found = projections(attention.module, attention.query.shape[1], attention.key.shape[1])
    reason = found.reason
    if found.value is not None and found.value.then:
        reason = f"values are clipped after the projection ({', '.join(found.value.then)})"
    if found.value is None or reason:
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"The ratchet of {type(attention.module).__name__} cannot be measured: {reason}; "
            "the change of advantage (equation 29) is that of a value matrix acting on the module's input.",
            "Choose a model with a linear value projection; gradient_scale measures this one.",
        )
    some = slice(None, None, max(1, attention.value.shape[2] // CHECKED_POSITIONS))
    bias = found.value.bias
    product = rows.at_least_float32(attention.hidden[:, some])[:, None] @ rows.at_least_float32(found.value.weight)
    expected = product if bias is None else product + rows.at_least_float32(bias)[:, None]
    value = rows.at_least_float32(attention.value[:, :, some])
    departure = (expected - value).norm(dim=-1)
    # a padding token may have a value of zero, and a head nothing else
    return torch.where(departure == 0, 0, departure / value.norm(dim=-1).amax(-1, keepdim=True))


def _check(departure: float, tolerance: float, what: str) -> None:
    if not departure <= tolerance:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"{what.format(departure)}; {tolerance:g} is allowed.",
            "Try dtype float32. If it stays, what was measured is not the model's: report it.",
        )
