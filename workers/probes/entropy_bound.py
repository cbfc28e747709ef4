"""Entropy bound: how much entropy attention rows have, the least their scores allow, and what kind of sparse they are.

A row of n keys whose centred scores have the norm σ has at least the entropy B(n, σ), which falls towards nσ exp(−σ):
Theorem 3.1 of Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", in
``workers.attention.entropy_bound``. Measured with the row's own σ, and with the one that weights and inputs allow
(``workers.attention.score_bound``) where they do bound the scores; both factors of that are stored for every head.

Low entropy says that rows are sparse, not that the pattern is of low rank. So there are also the weight of a row's
largest entries and the stable and effective rank of the pattern (``workers.attention.concentration``) of every k-th
query, ``rank_rows`` at most. In a row with a sink, entropy, σ and masses are those over the keys alone; ranks and
outputs are those of the pattern as it mixes values.

Self-checks: entropy ≥ bound in every row; the outputs of the ranked rows, from their weights, against the model's; σ of
every row against that of weights and inputs, and q and k rebuilt from the input, where these are said to bound.

Memory: one layer, a block of rows, and ``rank_rows`` rows of one head (on a GPU of as many heads as a block holds).
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.entropy_bound import OBSTACLE_BITS, TABLE, EntropyBoundParameters
from workers.attention import entropy_bound, rows, score_bound
from workers.attention.concentration import ranks, top_masses_
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.parts import parts
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe

_TYPES = {"int2": np.int16, "float4": np.float32, "bool": np.bool_}
_BY_ROW = ("entropy", "sigma", "keys", "top_1", "top_8", "top_5_percent")


# By name what is allowed, by the model's dtype, and what is said of more. Measured on the test families: below.
CHECKS: dict[str, tuple[dict[torch.dtype, float], str]] = {
    # rounding, in rows at the bound (two keys, or equal scores); rows are float32 at least: 8e-8 measured
    "bound_excess_nats": (
        {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-5},
        "The entropy of a row is {value:.3g} nats below the least that its scores allow",
    ),
    # outputs are rounded to the model's dtype: 1e-6 measured in float32, 3e-3 in bfloat16; wrong scores give 3e-2 and
    # more
    "output_residual": (
        {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2},
        "Outputs from the measured pattern differ from the model's by {value:.3g} of Σ a‖v‖",
    ),
    # queries and keys too: 4e-7 and 5e-3 measured; a rotary embedding gives 1
    "projection_residual": (
        {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2},
        "Queries and keys rebuilt from the layer's input differ from the model's by {value:.3g} of their norm",
    ),
    # 0 measured: the product is far above; queries and keys of bfloat16 may spread scores more by their rounding
    "sigma_excess": (
        {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2},
        "A row's scores spread {value:.3g} more, relatively, than weights and inputs allow",
    ),
}


class BoundCollector:
    """Measures each layer on the way forward."""

    def __init__(self, loaded: LoadedModel, parameters: EntropyBoundParameters, sequences: range, length: int) -> None:
        self._dtype = loaded.model.dtype
        self._sequences = sequences
        self._queries = parameters.queries.positions(length)
        self._stride = -(-len(self._queries) // parameters.rank_rows)
        self._ranked = self._queries[:: self._stride]
        shape = (loaded.architecture.layers, loaded.architecture.heads, len(sequences))
        measured = TABLE.columns[len(TABLE.key) + 1 :]
        self._columns = {column.name: np.empty(shape, dtype=_TYPES[column.type]) for column in measured}
        self._checks = {name: torch.zeros((), device=loaded.model.device) for name in CHECKS}
        self._batch = slice(0, 0)  # sequences of the current pass

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        bound = score_bound.of_layer(attention)
        if bound.weights.bounds:
            self._note("projection_residual", score_bound.rebuilt_residual(attention))
        batch, heads = attention.query.shape[:2]
        dtype = rows.at_least_float32(attention.query[:0]).dtype
        by_row = {name: attention.query.new_empty(batch, heads, len(self._queries), dtype=dtype) for name in _BY_ROW}
        both_ranks = attention.query.new_empty(2, batch, heads, dtype=dtype)
        for sequences, chosen, part in parts(attention, len(self._ranked) * (self._ranked[-1] + 1)):
            pattern = self._rows(part, {name: values[sequences, chosen] for name, values in by_row.items()})
            both_ranks[:, sequences, chosen] = torch.stack(ranks(pattern))
            self._note("output_residual", output_residual(part, self._ranked, pattern))
        self._store(attention, bound, {name: values.double() for name, values in by_row.items()}, both_ranks)

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing: everything was measured on the way forward."""

    def _rows(self, part: LayerAttention, by_row: dict[str, Tensor]) -> Float[Tensor, "batch head row key"]:
        """Fill in the statistics of the part's rows; returns the pattern of the ranked ones."""
        width = self._ranked[-1] + 1
        pattern = by_row["entropy"].new_zeros(*part.query.shape[:2], len(self._ranked), width)
        done = filled = 0
        for positions in rows.query_blocks(self._queries, part):
            block = entropy_bound.of_block(part, positions)
            chosen = slice(-done % self._stride, None, self._stride)
            of_pattern = block.weights[:, :, chosen, :width]
            place = pattern[:, :, filled : filled + of_pattern.shape[2], : of_pattern.shape[3]]
            torch.mul(of_pattern, block.share[:, :, chosen, None], out=place)
            masses = top_masses_(block.weights, block.keys)
            found = (block.entropy_nats, block.sigma, block.keys, masses.one, masses.eight, masses.five_percent)
            for name, values in zip(_BY_ROW, found, strict=True):
                by_row[name][:, :, done : done + len(positions)] = values
            done, filled = done + len(positions), filled + of_pattern.shape[2]
        return pattern

    def _store(
        self, attention: LayerAttention, bound: score_bound.ScoreBound, by_row: dict[str, Tensor], both_ranks: Tensor
    ) -> None:
        entropy, sigma, keys = by_row["entropy"], by_row["sigma"], by_row["keys"]
        log_bound = entropy_bound.log_lower_bound(sigma, keys)
        gap = entropy - log_bound.exp()
        self._note("bound_excess_nats", -gap)
        allowed = bound.sigma.double()[..., None].expand_as(sigma)
        if bound.weights.bounds:
            self._note("sigma_excess", (sigma - allowed) / allowed.clamp_min(torch.finfo(allowed.dtype).tiny))
        values = {
            "weight_norm": bound.weights.norm,
            "input_norm": bound.input_norm[:, None],
            "scaling": attention.scaling,
            "biased": bound.weights.biased,
            "obstacles": _code(bound.weights),
            "sigma_product": bound.sigma,
            "sigma_mean": sigma.mean(-1),
            "sigma_max": sigma.amax(-1),
            "entropy_mean": entropy.mean(-1),
            "entropy_min": entropy.amin(-1),
            "log10_bound": _log10_mean(log_bound),
            "log10_product_bound": _log10_mean(entropy_bound.log_lower_bound(allowed, keys)),
            "gap_mean": gap.mean(-1),
            "gap_min": gap.amin(-1),
            "tightness": _tightness(entropy, sigma, keys),
            "top_1": by_row["top_1"].mean(-1),
            "top_8": by_row["top_8"].mean(-1),
            "top_5_percent": by_row["top_5_percent"].mean(-1),
            "stable_rank": both_ranks[0],
            "effective_rank": both_ranks[1],
            "rank_rows": len(self._ranked),
        }
        shape = entropy.shape[:2]
        for name, column in self._columns.items():
            value = torch.as_tensor(values[name]).expand(shape).T
            column[attention.layer, :, self._batch] = value.cpu().numpy()

    def _note(self, check: str, values: Tensor) -> None:
        largest = values.max().to(self._checks[check])
        self._checks[check] = torch.maximum(self._checks[check], largest)  # NaN stays

    def result(self) -> Measurement:
        checks = {name: float(value) for name, value in self._checks.items()}
        for name, value in checks.items():
            _check(name, value, self._dtype)
        layer, head, sequence = np.indices(self._columns["sigma_mean"].shape).reshape(3, -1)
        keys = {
            "layer": layer.astype(np.int16),
            "head": head.astype(np.int16),
            "sequence": (sequence + self._sequences.start).astype(np.int32),
        }
        columns = {name: values.reshape(-1) for name, values in self._columns.items()}
        return Measurement(
            rows={TABLE.name: {**keys, **columns}}, checks={f"max_{name}": value for name, value in checks.items()}
        )


PROBE = PassProbe(BoundCollector, backward=False, hidden=True)


def output_residual(
    part: LayerAttention, positions: range, pattern: Float[Tensor, "batch head row key"]
) -> Float[Tensor, "batch head row"]:
    """Departure of Σ_j a_ij v_j from the model's outputs at ``positions``, in units of Σ_j a_ij ‖v_j‖."""
    value = rows.at_least_float32(part.value[:, :, : pattern.shape[-1]])
    output = rows.at_least_float32(part.output[:, rows.as_index(positions)].transpose(1, 2))
    mixed = rows.grouped_product(pattern, value.transpose(-1, -2))
    scale = rows.grouped_product(pattern, value.norm(dim=-1)[:, :, None])[..., 0]
    return (mixed - output).norm(dim=-1) / scale.clamp_min(torch.finfo(scale.dtype).tiny)


def _code(weights: score_bound.ScoreWeights) -> int:
    if weights.obstacles is None:
        return OBSTACLE_BITS["no matrices"]
    return sum(OBSTACLE_BITS[step] for step in set(weights.obstacles))


def _log10_mean(logs: Float[Tensor, "batch head query"]) -> Float[Tensor, "batch head"]:
    """log10 of the mean over the queries, of natural logarithms."""
    return (logs.logsumexp(-1) - math.log(logs.shape[-1])) / math.log(10)


def _tightness(entropy: Tensor, sigma: Tensor, keys: Tensor) -> Float[Tensor, "batch head"]:
    """Mean of the σ needed over the σ there is, over the rows in which something can be told."""
    told = (keys > 1) & (sigma > 0) & (entropy > 0)
    ratio = entropy_bound.needed_sigma(entropy, sigma, keys) / sigma
    return torch.where(told, ratio, torch.nan).nanmean(-1)


def _check(name: str, value: float, dtype: torch.dtype) -> None:
    allowed, message = CHECKS[name]
    if not value <= allowed[dtype]:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"{message.format(value=value)}; {allowed[dtype]:g} is allowed in {str(dtype).removeprefix('torch.')}.",
            "Try dtype float32. If it stays, what was measured is not what the model does: report it.",
        )
