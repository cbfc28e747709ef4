"""Pattern stability: how far the attention patterns of checkpoints lie apart, layer by layer and head by head.

Figure 4 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop): patterns differ far more between runs than
within one. Of every two checkpoints, on the same tokens, the Jensen–Shannon divergence, total variation and cosine
distance of their patterns (``workers/attention/pattern_distance.py`` has the formulas), each the mean over the measured
queries of a sequence. Heads are paired twice:

- by index, head h with head h: the natural pairing within a run;
- by optimal assignment, one to one within a layer, at the least total Jensen–Shannon divergence over all tokens of the
  job: the natural pairing across runs, whose heads have no common order.

A row is a distribution over its keys and the sink, if the model has one: an outcome like others, so that a head which
attends to nothing is near one that does the same. Soft caps and windows are in the row as in the model.

The models are loaded one after the other. Their queries and keys go to temporary files, and patterns are computed from
them again, one layer and one block of queries of all checkpoints at a time (``workers/attention/spilled.py``).

Self-checks: at a sampled query of every layer the pattern gives the output of the model's own forward pass, and the
distances are those of plain float64 formulas on patterns taken when the layer went by; a pattern is at distance 0 from
itself, distances are symmetric and 0 ≤ JS ≤ ln 2; and the divergences that heads were assigned by, from another
formula, are those of the rows.
"""

import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from jaxtyping import Float64, Integer
from scipy.special import rel_entr
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.pattern_stability import LN_2, TABLE, PatternStabilityParameters
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.pattern_comparison import Comparison, LayerComparison, pairs
from workers.attention.plain_row import departure_from_output, plain_row
from workers.attention.spilled import SpilledModel, TensorFile, spilled_bytes
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.models.vocabularies import common_vocabulary
from workers.probes import passes
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe

# Largest ‖Σ a v − y‖ / ‖y‖ of a sampled row, by the model's dtype, to which the output y is rounded. Measured: up to
# 2e-6 in float32, 4e-3 in bfloat16.
OUTPUT_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 3e-2}
# Largest error of a distance. Measured in float32: 5e-7 on the test families, 2e-6 on SmolLM2-135M; it grows with the
# size of the scores, whose rounding the weights inherit. Wrong heads or scores give a hundredth and more.
DISTANCE_TOLERANCE = 1e-4


class Capture:
    """Writes what makes the patterns of one model, and checks a row of every layer against its output."""

    def __init__(self, spilled: SpilledModel, layers: int, queries: range) -> None:
        self._spilled, self._layers, self._queries = spilled, layers, queries
        self._first = 0  # sequence of the shard with which the current pass begins
        self._departure = 0.0

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._first = sequences.start

    def forward(self, attention: LayerAttention) -> None:
        self._spilled.store(attention, self._first)
        if self._first == 0:
            position = sampled_position(attention.layer, self._layers, self._queries)
            row = plain_row(attention, 0, position)
            self._departure = max(self._departure, departure_from_output(row, attention, 0, position))
            self._spilled.keep(attention.layer, torch.from_numpy(row))

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Never called: patterns owe nothing to a loss."""

    def result(self) -> Measurement:
        return Measurement(rows={}, checks={"max_output_departure": self._departure})


def measure(
    loaded: LoadedModel,
    parameters: PatternStabilityParameters,
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
    others: OtherModels,
) -> Measurement:
    """Distances of every two checkpoints; the job's model is number 0, those of ``others`` follow.

    Raises KeyholeError (invalid_request) for a checkpoint of other layers or heads, (model_unsupported) of another
    tokenizer, (disk_full) where there is no room for the queries and keys, (self_check_failed).
    """
    names = parameters.other_models()
    sequences, length = token_ids.shape
    queries = parameters.queries.positions(length)
    architecture, device = loaded.architecture, loaded.model.device
    _require_room((1 + len(names)) * spilled_bytes(architecture, sequences, queries, loaded.model.dtype.itemsize))
    checks: dict[str, float] = {}
    with ExitStack() as stack:

        def capture(model: LoadedModel) -> SpilledModel:
            spilled = SpilledModel(stack.enter_context(TensorFile()), queries, device)
            probe = PassProbe(lambda *_: Capture(spilled, architecture.layers, queries), backward=False)
            _largest(checks, passes.measure(probe, model, parameters, token_ids, first_sequence).checks)
            return spilled

        models = [capture(loaded)]
        for number, name in enumerate(names, start=1):
            other = others.load(number - 1)
            _require_alike(loaded, other, f"checkpoint {number} ({name})")
            models.append(capture(other))
            del other  # before the next one is loaded
        comparison = Comparison(models, architecture.heads, sequences, queries)
        layers = []
        for layer in range(architecture.layers):
            layers.append(comparison.layer(layer, sampled_position(layer, architecture.layers, queries)))
            _largest(checks, _checked(layers[-1], [model.kept(layer).numpy() for model in models]))
        checks["spilled_bytes"] = sum(model.bytes for model in models)
    _require_passed(checks, loaded.model.dtype)
    return Measurement(rows={TABLE.name: _columns(layers, len(models), first_sequence)}, checks=checks)


def sampled_position(layer: int, layers: int, queries: range) -> int:
    """The query whose rows are checked in this layer: another one in each, spread over all."""
    return queries[(2 * layer + 1) * len(queries) // (2 * layers)]


def _checked(layer: LayerComparison, rows: Sequence[Float64[np.ndarray, "head outcome"]]) -> dict[str, float]:
    """The layer's self-checks; ``rows`` are every model's sampled row, as they were when the layer went by."""
    sample = layer.sample
    a, b = pairs(len(rows))[sample.pair]
    by_index = _plain_distances(rows[a], rows[b])
    by_assignment = _plain_distances(rows[a], rows[b][layer.paired_head[sample.pair]])
    apart = [
        np.abs(measured.double().cpu().numpy() - expected).max()
        for measured, expected in ((sample.by_index, by_index), (sample.by_assignment, by_assignment))
    ]
    js = np.stack([layer.by_index[0], layer.by_assignment[0]])
    # of head and paired head, each pair and head once: the mean over sequences of equal numbers of queries
    index = np.arange(layer.divergences.shape[1])
    assigned = np.take_along_axis(layer.divergences, layer.paired_head[..., None], 2)[..., 0]
    other_formula = np.stack([layer.divergences[:, index, index], assigned])  # pairing, pair, head
    return {
        "max_distance_error": float(max(apart)),
        "max_distance_from_itself": float(sample.of_itself.abs().max()),
        "max_asymmetry": float((sample.by_index - sample.reversed).abs().max()),
        "max_js_beyond_bounds": float(max(0.0, -js.min(), js.max() - LN_2)),
        "max_formula_difference": float(np.abs(js.mean(2).transpose(0, 2, 1) - other_formula).max()),
    }


def _plain_distances(
    first: Float64[np.ndarray, "head outcome"], second: Float64[np.ndarray, "head outcome"]
) -> Float64[np.ndarray, "distance head"]:
    """The three distances of each head's row. SciPy's jensenshannon is a root, NaN where rounding leaves -1e-17."""
    mixture = (first + second) / 2
    js_nats = (rel_entr(first, mixture) + rel_entr(second, mixture)).sum(1) / 2
    total_variation = np.abs(first - second).sum(1) / 2
    cosine = 1 - (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return np.stack([js_nats, total_variation, cosine])


def _largest(checks: dict[str, float], found: Mapping[str, float]) -> None:
    for name, value in found.items():
        checks[name] = float(np.maximum(checks.get(name, value), value))  # NaN stays


def _require_passed(checks: Mapping[str, float], dtype: torch.dtype) -> None:
    for name, value in checks.items():
        tolerance = OUTPUT_TOLERANCE[dtype] if name == "max_output_departure" else DISTANCE_TOLERANCE
        if name.startswith("max_") and not value <= tolerance:  # also when it is not a number
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"The self-check {name} is {value:.3g}; {tolerance:g} is allowed in "
                f"{str(dtype).removeprefix('torch.')}.",
                "Try dtype float32. If it stays, the patterns measured are not those of the models: report it.",
            )


def _require_room(needed: int) -> None:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise KeyholeError(
            ErrorCode.DISK_FULL,
            f"Queries and keys of all checkpoints take {needed / 1e9:.1f} GB; {folder} on the worker "
            f"{socket.gethostname()} has {free / 1e9:.1f} GB free.",
            "Let the worker's TMPDIR name a folder with more room, or ask for fewer sequences, queries or checkpoints.",
        )


def _require_alike(first: LoadedModel, other: LoadedModel, name: str) -> None:
    for what in ("layers", "heads"):
        ours, theirs = getattr(first.architecture, what), getattr(other.architecture, what)
        if ours != theirs:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"The patterns of {name} cannot be compared: it has {theirs} {what}, the job's model {ours}.",
                "Name checkpoints of the same shape.",
            )
    common_vocabulary(first, other, name)


def _columns(layers: Sequence[LayerComparison], models: int, first_sequence: int) -> dict[str, np.ndarray]:
    """The table's columns: by layer, head, sequence and pair."""
    by_index, by_assignment = (
        np.stack([getattr(layer, name) for layer in layers], axis=1) for name in ("by_index", "by_assignment")
    )
    paired = np.stack([layer.paired_head.T[:, None] for layer in layers])  # layer, head, 1, pair
    shape = by_index.shape[1:]
    first, second = np.array(pairs(models), dtype=np.int16).T
    axes = {
        "layer": np.arange(shape[0], dtype=np.int16)[:, None, None, None],
        "head": np.arange(shape[1], dtype=np.int16)[:, None, None],
        "sequence": np.arange(first_sequence, first_sequence + shape[2], dtype=np.int32)[:, None],
        "first": first,
        "second": second,
    }
    columns = {name: np.broadcast_to(axis, shape) for name, axis in axes.items()}
    measures = ("js_nats", "total_variation", "cosine")
    columns |= dict(zip(measures, _stored(by_index), strict=True))
    columns["paired_head"] = np.broadcast_to(paired.astype(np.int16), shape)
    columns |= {f"paired_{name}": values for name, values in zip(measures, _stored(by_assignment), strict=True)}
    return {name: values.reshape(-1) for name, values in columns.items()}


def _stored(values: np.ndarray) -> np.ndarray:
    """Rounded to what the table holds, and rounding not beyond the bounds of the three distances."""
    bounds = np.array([LN_2, 1.0, 1.0])[:, None, None, None, None]
    return np.clip(values, 0, bounds).astype(np.float32)
