"""Shared routing: what each token's loss becomes when the heads of a layer share one pattern.

    s̄_ij = (1/H) Σ_h s_hij        ā_i = softmax(s̄_i)        ȳ_hi = Σ_j ā_ij v_hj

equations 34–37 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop), its Figure 5 and Table 4; and sigmoid
weights, alone or with shared scores (equation 38). One layer is changed and every other one left as it is, or all are
changed at once. The extra loss of a token is its loss then minus its loss under the unmodified model.

The layers below the one that is changed give what they gave before: their outputs are kept, one residual stream per
layer, and passes restart above them. So all L layers, one at a time, take about (L + 1) / 2 passes of the layers, and
L + 1 of the head. Whether a model can be restarted is found out on the first tokens; otherwise every pass is whole.

Self-checks: equation 37 on sampled rows of every changed layer; the model's own attention through the code that
changes it gives the unmodified losses; restarted passes give the losses of whole ones.
"""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit
from services.contracts.probes.shared_routing import ALL_AT_ONCE, TABLE, UNMODIFIED_TABLE, SharedRoutingParameters
from workers.attention import seam, value_map
from workers.attention.bias_fit import least
from workers.attention.inputs import AttentionInputs, LayerAttention, Outputs
from workers.attention.next_token import token_losses
from workers.attention.routes import own_by_blocks, route_of
from workers.attention.shared import shared_route
from workers.attention.sigmoid import sigmoid_route
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.models.restarting import LayerOutputs, decoder_layers
from workers.probes.measurement import Measurement

# By the model's dtype, to which outputs and values are rounded. Measured on the test families: up to 6e-16, 3e-7 and
# 3e-3; on SmolLM2-135M 9e-7 in float32 and 2e-3 in bfloat16. Other weights, or other heads' values, give a tenth.
VALUE_MAP_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2}
# Of one token's loss, all layers in blocks against fused kernels: rounding alone. Measured on the test families: up to
# 4e-15, 7e-6 and 0.08 nats; on SmolLM2-135M 2e-5 in float32, 0.24 in bfloat16.
UNCHANGED_TOLERANCE_NATS = {torch.float64: 1e-4, torch.float32: 1e-2, torch.bfloat16: 2.0}
RESTART_TOLERANCE_NATS = 1e-4  # the same operations on the same numbers; measured: no difference at all
_REHEARSAL_TOKENS = 128
_SAMPLED_ROWS = 4


@dataclass(frozen=True)
class Change:
    """Which layers are changed in a pass, and under which number its rows are stored."""

    stored_layer: int
    layers: frozenset[int]


def measure(
    loaded: LoadedModel,
    parameters: SharedRoutingParameters,
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
    others: OtherModels,
) -> Measurement:
    """Losses of the shard's tokens, unmodified and for every change.

    Raises KeyholeError: invalid_request for a layer that the model does not have, model_unsupported, and
    self_check_failed.
    """
    changes = changes_of(parameters, loaded.architecture.layers)
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=loaded.model.device)
    queries = parameters.predicting_queries(token_ids.shape[1])
    rehearsal = _rehearsed(loaded.model, ids)
    layers = decoder_layers(loaded.model) if rehearsal["restarted"] else None
    batches = [
        _Batch(loaded.model, ids[first : first + parameters.batch], queries, layers)
        for first in range(0, len(ids), parameters.batch)
    ]
    biases = _biases(parameters, changes, batches, token_ids.shape[1])
    unmodified = torch.empty(len(ids), len(queries))
    changed = torch.empty(len(changes), len(ids), len(queries))
    check = _ValueMapCheck(parameters, range(token_ids.shape[1]))
    for number, batch in enumerate(batches):
        part = slice(number * parameters.batch, number * parameters.batch + len(batch.ids))
        unmodified[part] = batch.unmodified()
        for index, (change, bias) in enumerate(zip(changes, biases, strict=True)):
            check.watch(change, bias)
            route = _route(parameters, bias)
            changed[index, part] = batch.changed(change.layers, route, [check] if number == 0 else [])
        batch.forget()
    checks = {"loss_nats": float(unmodified.double().mean()), **rehearsal, "max_value_map_residual": check.residual}
    _check(checks, loaded.model.dtype)
    if parameters.bias == "fitted":
        checks |= {
            f"bias_layer_{change.stored_layer}": bias
            for change, bias in zip(changes, biases, strict=True)
            if bias is not None
        }
    return _measurement(changes, range(first_sequence, first_sequence + len(ids)), queries, unmodified, changed, checks)


def changes_of(parameters: SharedRoutingParameters, layers: int) -> list[Change]:
    """What to change, in the order of the stored layers; raises KeyholeError (invalid_request)."""
    parameters.require_fit(layers, heads=0)
    asked = list(range(layers)) if parameters.layers is None else parameters.layers
    if parameters.together:
        return [Change(ALL_AT_ONCE, frozenset(asked))]
    return [Change(layer, frozenset([layer])) for layer in asked]


class _Batch:
    """Passes over the same sequences: first the unmodified one, then those with some layers changed."""

    def __init__(self, model: PreTrainedModel, ids: Tensor, queries: range, layers: list[torch.nn.Module] | None):
        self.ids = ids
        self._model = model
        self._queries = torch.tensor(queries, device=ids.device)
        self._layers = layers
        self._outputs: LayerOutputs | None = None

    def unmodified(self) -> Float[Tensor, "sequence query"]:
        """Losses of the model as it is; what its layers give is kept for the passes to come."""
        if self._layers is not None:
            self._outputs = LayerOutputs(self._layers)
        with seam.observing(self._model), self._outputs.recorded() if self._outputs else nullcontext():
            return self._losses()

    def changed(
        self, layers: frozenset[int], route: seam.Route, observers: Sequence[seam.Observer] = ()
    ) -> Float[Tensor, "sequence query"]:
        """Losses with ``route`` in these layers and the model's own attention in all others."""
        own = route_of(seam.defined(self._model))

        def by_layer(inputs: AttentionInputs, credit: Credit) -> Tensor:
            return (route if inputs.layer in layers else own)(inputs, credit)

        first = min(layers) if self._outputs else 0
        with (
            seam.observing(self._model, observers, route=by_layer, hidden=bool(observers), first_layer=first),
            self._outputs.replayed_below(first) if self._outputs else nullcontext(),
        ):
            return self._losses()

    def forget(self) -> None:
        self._outputs = None

    def _losses(self) -> Float[Tensor, "sequence query"]:
        """Losses of the predictions made at the queries; logits of other positions are left out, where they can be."""
        with torch.no_grad():
            if "logits_to_keep" in inspect.signature(self._model.forward).parameters:
                logits = self._model(self.ids, use_cache=False, logits_to_keep=self._queries).logits
            else:
                logits = self._model(self.ids, use_cache=False).logits[:, self._queries]
            return token_losses(logits, self.ids[:, self._queries + 1])


def _route(parameters: SharedRoutingParameters, bias: float | None) -> seam.Route:
    if parameters.routing == "shared_softmax":
        return shared_route
    return sigmoid_route("row_length" if bias is None else bias, shared=parameters.routing == "shared_sigmoid")


def _biases(
    parameters: SharedRoutingParameters, changes: Sequence[Change], batches: Sequence[_Batch], length: int
) -> list[float | None]:
    """b of each change; none means −log of each row's length."""
    if parameters.bias == "row_length":
        return [None] * len(changes)
    if parameters.bias == "sequence_length":
        return [-float(np.log(length))] * len(changes)
    if parameters.bias != "fitted":
        return [parameters.bias] * len(changes)
    fitted_on = batches[: -(-parameters.fit_sequences // parameters.batch)]
    for batch in fitted_on:
        batch.unmodified()

    def best(change: Change) -> float:
        def loss(bias: float) -> float:
            route = _route(parameters, bias)
            losses = torch.cat([batch.changed(change.layers, route) for batch in fitted_on])
            return float(losses[: parameters.fit_sequences].double().mean())

        return least(loss, length)

    found = [best(change) for change in changes]
    for batch in fitted_on:
        batch.forget()
    return list(found)


class _ValueMapCheck:
    """Holds a few rows of each changed layer against equation 37."""

    def __init__(self, parameters: SharedRoutingParameters, positions: range) -> None:
        self._softmax = parameters.routing == "shared_softmax"
        self._shared = parameters.routing != "sigmoid"
        last = len(positions) - 1
        self._positions = sorted({round(last * step / (_SAMPLED_ROWS - 1)) for step in range(_SAMPLED_ROWS)})
        self._layers: frozenset[int] = frozenset()
        self._bias: float | None = None
        self.residual = 0.0

    def watch(self, change: Change, bias: float | None) -> None:
        self._layers, self._bias = change.layers, bias

    def forward(self, attention: LayerAttention) -> None:
        if attention.layer not in self._layers:
            return
        weights = value_map.row_weights(
            attention, self._positions, softmax=self._softmax, shared=self._shared, bias=self._bias
        )
        found = value_map.departure(attention, self._positions, weights)
        self.residual = float(np.maximum(self.residual, found))  # NaN stays

    def backward(self, attention: LayerAttention, delta: Outputs) -> None: ...


# what was found out about a loaded model, so that its later shards need not find it out again
_rehearsals: WeakKeyDictionary[PreTrainedModel, dict[str, float]] = WeakKeyDictionary()


def _rehearsed(model: PreTrainedModel, ids: Tensor) -> dict[str, float]:
    if model not in _rehearsals:
        _rehearsals[model] = _rehearse(model, ids[:1, :_REHEARSAL_TOKENS])
    return dict(_rehearsals[model])


def _rehearse(model: PreTrainedModel, ids: Tensor) -> dict[str, float]:
    """Does the model's own attention in blocks change nothing, and can its passes be restarted?"""
    queries = range(ids.shape[1] - 1)
    number = model.config.get_text_config().num_hidden_layers
    whole = _Batch(model, ids, queries, None)
    own = own_by_blocks(seam.defined(model))
    apart = (whole.changed(frozenset(range(number)), own) - whole.unmodified()).abs()
    found = {"max_unchanged_difference_nats": float(apart.max()), "unchanged_difference_nats": float(apart.mean())}
    layers = decoder_layers(model)
    if layers is None:
        return found | {"restarted": 0.0}
    restarted = _Batch(model, ids, queries, layers)
    restarted.unmodified()
    differences = [
        float((restarted.changed(one, shared_route) - whole.changed(one, shared_route)).abs().max())
        for one in (frozenset([layer]) for layer in sorted({min(1, number - 1), number // 2, number - 1}))
    ]
    return found | {"restarted": float(max(differences) <= RESTART_TOLERANCE_NATS)}


def _check(checks: dict[str, float], dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    if not np.isfinite(checks["loss_nats"]):
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The unmodified model's loss is {checks['loss_nats']} nats.",
            "The logits overflowed: try dtype float32, and look whether the model's weights are finite.",
        )
    residual, tolerance = checks["max_value_map_residual"], VALUE_MAP_TOLERANCE[dtype]
    if not residual <= tolerance:
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"What a changed layer adds departs from equation 37 by {residual:.3g} of its norm; {tolerance:g} is "
            f"allowed in {name}.",
            "Try dtype float32. If it stays, the routing is not what it should be: report it.",
        )
    difference, allowed = checks["max_unchanged_difference_nats"], UNCHANGED_TOLERANCE_NATS[dtype]
    if not difference <= allowed:
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The model's own attention, computed in blocks, changes a token's loss by {difference:.3g} nats; "
            f"{allowed:g} is allowed in {name}.",
            "Try dtype float32. If it stays, the scores are not those of the model: report it.",
        )


def _measurement(
    changes: Sequence[Change],
    sequences: range,
    queries: range,
    unmodified: Float[Tensor, "sequence query"],
    changed: Float[Tensor, "change sequence query"],
    checks: dict[str, float],
) -> Measurement:
    extra = (changed.double() - unmodified.double()).float()
    layer, sequence, query = np.meshgrid(
        np.array([change.stored_layer for change in changes], dtype=np.int16),
        np.asarray(sequences, dtype=np.int32),
        np.asarray(queries, dtype=np.int32),
        indexing="ij",
    )
    rows = {
        TABLE.name: {
            "layer": layer.reshape(-1),
            "sequence": sequence.reshape(-1),
            "query": query.reshape(-1),
            "loss_nats": changed.numpy().reshape(-1),
            "extra_loss_nats": extra.numpy().reshape(-1),
        },
        UNMODIFIED_TABLE.name: {
            "sequence": sequence[0].reshape(-1),
            "query": query[0].reshape(-1),
            "loss_nats": unmodified.numpy().reshape(-1),
        },
    }
    return Measurement(rows=rows, checks=checks)
