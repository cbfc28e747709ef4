"""Spectrum of the attention Jacobian: in how many directions of δ_i a query's gradient can move.

    ∇_{q_i} L = J_iᵀ δ_i,    J_i = ∂y_i/∂q_i = c Σ_j a_ij (v_j − y_i) k_jᵀ

equations 23 and 24 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop); ``workers/attention/jacobian.py``
has the form with soft caps and sinks, ``singular_spectrum.py`` the effective ranks (equation 25). What J_iᵀ maps to
nothing is lost to W_Q. All of it is computed in float64 from the q, k and v of the model's forward pass.

A row of one key has J = 0 (without a sink): its ranks are NaN.

Self-checks: Jacobians of some queries by automatic differentiation; y of every measured row against the model's own;
and that no singular value is left beyond the rank that a short row can have.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.jacobian_spectrum import MODE_TABLE, TABLE, JacobianSpectrumParameters
from workers.attention import jacobian, singular_spectrum
from workers.attention.inputs import AttentionInputs, LayerAttention, Outputs
from workers.attention.threads import over_cores
from workers.models.loaded import Architecture, LoadedModel
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe

# ‖J − J_autograd‖_F / ‖J‖_F. Where nearly all of a row's weight is on one key J is a small difference, of which
# autograd keeps fewer digits than we do; so ‖J‖_F counts as SATURATED · c · max‖k‖ · max‖v‖ where it is less.
# Measured: up to 5e-13 on the test families, 5e-14 on SmolLM2-135M (median 5e-16).
JACOBIAN_TOLERANCE = 1e-12
SATURATED = 1e-3
# Below this share of c · max‖k‖ · max‖v‖ a Jacobian is rounding error: equal values, or one key with all of the weight.
VOID = 1e-14
# σ_r/σ_max where the rank of a short row is used up; it is set to 0 afterwards. Rounding of the squared matrix leaves
# √(float64 ε · width) = 2e-7 at most; measured: up to 3e-8.
BEYOND_RANK_TOLERANCE = 1e-6
# ‖y − y_model‖ / max‖v‖ by the model's dtype. Measured: up to 3e-15, 2e-6 and 3e-3; wrong scores give a tenth and more.
OUTPUT_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2}
_STATISTICS = [column.name for column in TABLE.columns if column.name not in ("job_id", *TABLE.key)]
_QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
_GOLDEN_RATIO = 0.6180339887498949  # multiples of it, modulo 1, fill [0, 1) evenly


@dataclass(frozen=True)
class _Block:
    """What one block of queries of one head gave."""

    statistics: dict[str, np.ndarray]
    relative: Float[np.ndarray, "query mode"]
    checks: dict[str, float]


class SpectrumCollector:
    """Fills in the spectra of the chosen heads of each layer in the forward pass."""

    def __init__(
        self, loaded: LoadedModel, parameters: JacobianSpectrumParameters, sequences: range, length: int
    ) -> None:
        self._dtype, self._heads = loaded.model.dtype, loaded.architecture.heads
        self._sequences, self._queries = sequences, parameters.queries.positions(length)
        self._check_queries = parameters.check_queries
        self._sites = _sites(parameters, loaded.architecture)
        self._places = {site: place for place, site in enumerate(self._sites)}
        shape = (len(self._sites), len(sequences), len(self._queries))
        types = {column.name: column.type for column in TABLE.columns}
        self._rows = {name: np.empty(shape, np.int16 if types[name] == "int2" else np.float32) for name in _STATISTICS}
        self._modes: dict[tuple[int, int], dict[str, np.ndarray]] = {}  # by site and sequence of the shard
        self._checks: dict[str, float] = {}
        self._batch = slice(0, 0)  # sequences of the current pass

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        heads = [head for layer, head in self._sites if layer == attention.layer]
        for sequence in range(len(attention.query)):
            self._measure(attention, sequence, heads)

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing: J does not depend on the loss."""

    def _measure(self, attention: LayerAttention, sequence: int, heads: list[int]) -> None:
        """All queries of these heads in one sequence of the batch, block by block over the cores."""
        number = self._batch.start + sequence
        sites = {head: jacobian.of_head(attention, sequence, head) for head in heads}
        outputs = {head: attention.output[sequence, :, head].double() for head in heads}
        checked = {head: self._checked(number, head) for head in heads}
        work = [(head, positions) for head in heads for positions in jacobian.blocks(sites[head], self._queries)]

        def measure(item: tuple[int, range]) -> _Block:
            head, positions = item
            with torch.no_grad():
                return _measure_block(sites[head], positions, outputs[head], checked[head].intersection(positions))

        blocks = over_cores(measure, work, attention.query.device)
        for head in heads:
            mine = [block for block, (of, _) in zip(blocks, work, strict=True) if of == head]
            place = self._places[attention.layer, head]
            for name, rows in self._rows.items():
                rows[place, number] = np.concatenate([block.statistics[name] for block in mine])
            self._modes[place, number] = _mode_statistics(np.concatenate([block.relative for block in mine]))
        for block in blocks:
            self._checks = _largest([self._checks, block.checks])

    def _checked(self, sequence: int, head: int) -> set[int]:
        """The queries of a head whose Jacobian is checked: others in every head and sequence, and always the same."""
        first = ((self._sequences[sequence]) * self._heads + head) * self._check_queries
        fractions = ((first + index) * _GOLDEN_RATIO % 1 for index in range(self._check_queries))
        return {self._queries[int(fraction * len(self._queries))] for fraction in fractions}

    def result(self) -> Measurement:
        _check(self._checks, self._dtype)
        layers, heads = (np.array(axis, np.int16) for axis in zip(*self._sites, strict=True))
        shape = self._rows[_STATISTICS[0]].shape
        keys = {
            "layer": np.broadcast_to(layers[:, None, None], shape),
            "head": np.broadcast_to(heads[:, None, None], shape),
            "sequence": np.broadcast_to(np.array(self._sequences, np.int32)[:, None], shape),
            "query": np.broadcast_to(np.array(self._queries, np.int32), shape),
        }
        columns = {name: values.reshape(-1) for name, values in (keys | self._rows).items()}
        return Measurement({TABLE.name: columns, MODE_TABLE.name: self._mode_columns(layers, heads)}, self._checks)

    def _mode_columns(self, layers: np.ndarray, heads: np.ndarray) -> dict[str, np.ndarray]:
        places = sorted(self._modes)
        modes = [len(self._modes[place]["mean"]) for place in places]  # layers may differ in it
        repeated = {
            "layer": layers[[site for site, _ in places]],
            "head": heads[[site for site, _ in places]],
            "sequence": np.array([self._sequences[number] for _, number in places], np.int32),
        }
        columns = {name: np.repeat(values, modes) for name, values in repeated.items()}
        columns["mode"] = np.concatenate([np.arange(number, dtype=np.int16) for number in modes])
        return columns | {
            name: np.concatenate([self._modes[place][name] for place in places])
            for name in ("queries", "mean", *_QUANTILES)
        }


PROBE = PassProbe(SpectrumCollector, backward=False)


def _sites(parameters: JacobianSpectrumParameters, architecture: Architecture) -> list[tuple[int, int]]:
    """Layer and head of every site, sorted; raises KeyholeError (invalid_request) for one that the model has not."""
    layers, heads = architecture.layers, architecture.heads
    if parameters.sites is None:
        return [(layer, head) for layer in range(layers) for head in range(heads)]
    parameters.require_fit(layers, heads)
    return sorted((site.layer, site.head) for site in parameters.sites)


def _measure_block(
    head: AttentionInputs, positions: range, output: Float[Tensor, "position d_value"], checked: Iterable[int]
) -> _Block:
    found = jacobian.jacobians(head, positions)
    if not bool(torch.isfinite(found.output).all()):  # as J then: both have every query, key and value of the row
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"A Jacobian of layer {head.layer} among queries {positions[0]} to {positions[-1]} is not finite.",
            "Queries, keys or values overflowed: try dtype float32, and look whether the model's weights are finite.",
        )
    sigma = jacobian.singular_values(found, head.scaling)
    sigma.masked_fill_(sigma[:, :1] <= VOID * _largest_possible(head), 0)
    rank = jacobian.largest_rank(found, head)
    beyond = torch.arange(sigma.shape[1], device=rank.device) >= rank[:, None]
    checks = _block_checks(head, positions, found, output, checked)
    if bool(beyond[rank > 0].any()):
        excess = torch.where(beyond & (sigma > 0), sigma / sigma[:, :1], 0)[rank > 0]
        checks["max_sigma_beyond_rank"] = float(excess.max())
    spectrum = singular_spectrum.statistics(sigma.masked_fill_(beyond, 0))
    statistics = {
        "effective_rank": spectrum.effective_rank,
        "effective_rank_sigma": spectrum.effective_rank_sigma,
        "participation_ratio": spectrum.participation_ratio,
        "modes_above_1e_2": spectrum.modes_above[0],
        "modes_above_1e_3": spectrum.modes_above[1],
        "sigma_max": sigma[:, 0],
        "top_attention": found.top_weight,
    }
    return _Block(
        {name: values.cpu().numpy() for name, values in statistics.items()},
        spectrum.relative.float().cpu().numpy(),
        checks,
    )


def _largest_possible(head: AttentionInputs) -> Tensor:
    """c · max‖k‖ · max‖v‖, which no Jacobian of the head exceeds by more than a factor of two."""
    return abs(head.scaling) * head.key.norm(dim=-1).max() * head.value.norm(dim=-1).max()


def _block_checks(
    head: AttentionInputs,
    positions: range,
    found: jacobian.Jacobians,
    output: Float[Tensor, "position d_value"],
    checked: Iterable[int],
) -> dict[str, float]:
    value_norm = head.value.norm(dim=-1).max()
    departure = (found.output - output[list(positions)]).norm(dim=-1).max()
    checks = {"max_output_error": float(departure / value_norm if value_norm > 0 else departure)}
    floor = SATURATED * _largest_possible(head)
    for position in checked:
        exact = jacobian.by_autograd(head, position)
        error = (head.scaling * found.unscaled[positions.index(position)] - exact).norm()
        size = torch.maximum(exact.norm(), floor)
        checks = _largest([checks, {"max_jacobian_error": float(error / size) if size > 0 else float(error)}])
    return checks


def _largest(checks: Iterable[dict[str, float]]) -> dict[str, float]:
    """Each check's largest value; one that is not a number stays."""
    found: dict[str, float] = {}
    for each in checks:
        for name, value in each.items():
            found[name] = float(np.maximum(found.get(name, value), value))
    return found


def _mode_statistics(relative: Float[np.ndarray, "query mode"]) -> dict[str, np.ndarray]:
    """Mean and quantiles of σ_r/σ_max over the queries that have a J other than 0, mode by mode."""
    defined = relative[~np.isnan(relative[:, 0])]
    modes = relative.shape[1]
    found: dict[str, np.ndarray] = {"queries": np.full(modes, len(defined), np.int32)}
    if not len(defined):
        return found | {name: np.full(modes, np.nan, np.float32) for name in ("mean", *_QUANTILES)}
    found["mean"] = defined.mean(0, dtype=np.float64).astype(np.float32)
    ordered = np.sort(defined.T)
    for name, share in _QUANTILES.items():
        place = share * (len(defined) - 1)
        low = int(place)
        high = min(low + 1, len(defined) - 1)
        found[name] = ordered[:, low] + np.float32(place - low) * (ordered[:, high] - ordered[:, low])
    return found


def _check(checks: dict[str, float], dtype: torch.dtype) -> None:
    tolerances = {
        "max_jacobian_error": (JACOBIAN_TOLERANCE, "Jacobians differ from those by automatic differentiation"),
        "max_sigma_beyond_rank": (BEYOND_RANK_TOLERANCE, "A row has singular values beyond its possible rank"),
        "max_output_error": (OUTPUT_TOLERANCE[dtype], "Outputs of the measured rows differ from the model's"),
    }
    for name, value in checks.items():
        tolerance, what = tolerances[name]
        if not value <= tolerance:  # also when it is not a number
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"{what}: {name} is {value:.3g}, {tolerance:g} is allowed for {str(dtype).removeprefix('torch.')}.",
                "Try dtype float32. If it stays, the rows measured are not those of the model: report it.",
            )
