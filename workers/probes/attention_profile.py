"""Attention profile: where each query's attention goes, and the type of each head.

Per query i, with a_ij the weights as the model uses them (after soft cap and softmax):

    entropy H_i = −Σ_j p_j log p_j (nats), p = a / Σ_j a_ij     largest weight max_j a_ij and the key that has it
    self a_ii      previous token a_i,i−1      local Σ_{i−7 ≤ j ≤ i} a_ij      sink a_i0

A head's value is the mean over its queries. Means over heads and the number of heads beyond a threshold are the rows
of Table 5 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop). Per head, on random tokens repeated once:
induction, duplicate-token and previous-token scores (``workers/attention/repeated.py``), in passes of the probe's own.

A learned sink (gpt-oss) is no key. The weight it takes has a column of its own, all weights are what keys get from
the model, and the entropy is over the keys, so that 0 ≤ H ≤ log n holds for every model.

Self-check, on a few queries of every layer and pass: the row's output Σ_j a_ij v_j against the output of the forward
pass, and H against l − c q·k̄; on every row the bounds of entropy and masses. Memory: one layer, one block of rows.
"""

import torch
from jaxtyping import Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.attention_profile import (
    LOCAL_KEYS,
    REPEATED_TABLE,
    TABLE,
    AttentionProfileParameters,
)
from workers.attention import profile, repeated, rows
from workers.attention.inputs import LayerAttention, Outputs
from workers.models.loaded import LoadedModel
from workers.models.tokenizer import separator_id
from workers.probes.measurement import Measurement, key_columns
from workers.probes.passes import PassProbe, forward_pass

CHECKED_QUERIES = 4  # of each layer and pass
# Allowed for a log normalizer of 0, and once more for each 50 of it: scores are rounded in proportion to their size.
# Measured on the test families: outputs (the model's are rounded to its dtype) up to 8e-7 in float32 and 3e-3 in
# bfloat16, entropies 1e-5; on SmolLM2-135M 2e-6 and 2e-5. Outputs of rows of another scale, cap or sink depart by 0.1.
OUTPUT_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 3e-2}
ENTROPY_TOLERANCE = 1e-4
SCORES_ROUNDED = 50
BOUND_TOLERANCE = 1e-5  # measured: up to 3e-7
_WEIGHTS = ("entropy_nats", "top_weight", "self_weight", "previous_weight", "local_mass", "sink_mass", "no_key_mass")
_SCORES = ("induction_score", "duplicate_score", "previous_score")


class ProfileCollector:
    """Measures the repeated random sequences at once, then fills in each layer of the passes that go by."""

    def __init__(
        self, loaded: LoadedModel, parameters: AttentionProfileParameters, sequences: range, length: int
    ) -> None:
        self._architecture, self._dtype = loaded.architecture, loaded.model.dtype
        self._sequences = sequences
        self._queries = parameters.queries.positions(length)
        layers, heads = self._architecture.layers, self._architecture.heads
        device = loaded.model.device
        shape = (layers, heads, len(sequences), len(self._queries))
        self._values = {name: torch.empty(shape, device=device) for name in _WEIGHTS}
        self._top_key = torch.empty(shape, dtype=torch.int32, device=device)
        self._batch = slice(0, 0)  # sequences of the current pass
        every = max(1, len(self._queries) // CHECKED_QUERIES)
        self._checked = frozenset(self._queries[::-1][::every][:CHECKED_QUERIES])
        self._largest = {name: torch.zeros((), device=device) for name in ("output", "entropy", "bound")}
        self._repeated = _RepeatedSequences(loaded, parameters, sequences, length)

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        place = (attention.layer, slice(None), self._batch)
        done = 0
        for positions in rows.query_blocks(self._queries, attention):
            found = profile.profile_of_block(attention, positions, LOCAL_KEYS)
            part = slice(done, done + len(positions))
            for name, values in self._values.items():
                measured = getattr(found, name).clamp(min=0)  # rounding; see the check of the bounds
                values[place][..., part] = measured.transpose(0, 1)
            self._top_key[place][..., part] = found.top_key.transpose(0, 1).int()
            self._note("bound", profile.excess_over_bounds(found))
            for number, position in enumerate(positions):
                if position in self._checked:
                    self._check_row(attention, position, found.entropy_nats[..., number])
            done += len(positions)

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing: no gradient is needed."""

    def _check_row(self, attention: LayerAttention, position: int, entropy: Tensor) -> None:
        other = profile.row_from_vectors(attention, position)
        departure = (other.output - rows.at_least_float32(attention.output[:, position])).norm(dim=-1)
        rounding = 1 + other.log_normalizer.abs() / SCORES_ROUNDED
        self._note("output", (departure / (other.size * rounding).clamp(min=torch.finfo(departure.dtype).tiny)).max())
        self._note("entropy", ((entropy - other.entropy_nats).abs() / rounding).max())

    def _note(self, name: str, value: Tensor) -> None:
        # NaN stays: torch.maximum propagates it
        self._largest[name] = torch.maximum(self._largest[name], value.to(self._largest[name].dtype))

    def result(self) -> Measurement:
        tolerances = {"output": OUTPUT_TOLERANCE[self._dtype], "entropy": ENTROPY_TOLERANCE, "bound": BOUND_TOLERANCE}
        largest = {name: float(value) for name, value in self._largest.items()}
        for name, tolerance in tolerances.items():
            _require(name, largest[name], tolerance)
        keys = key_columns(self._architecture.layers, self._architecture.heads, self._sequences, self._queries)
        values = {**self._values, "top_key": self._top_key}
        names = [column.name for column in TABLE.columns if column.name in values]
        columns = {**keys, **{name: values[name].cpu().numpy().reshape(-1) for name in names}}
        checks = {
            "max_output_residual": largest["output"],
            "max_entropy_difference_nats": largest["entropy"],
            "max_bound_excess": largest["bound"],
            "output_residual_tolerance": tolerances["output"],
            "entropy_difference_tolerance_nats": tolerances["entropy"],
            "bound_excess_tolerance": tolerances["bound"],
            "repeated_length": float(self._repeated.length),
        }
        return Measurement({TABLE.name: columns, REPEATED_TABLE.name: self._repeated.columns()}, checks)


PROBE = PassProbe(ProfileCollector, backward=False)


class _RepeatedSequences:
    """Scores of head types. The random sequence of a number is measured in the shard of the data's sequence of it."""

    def __init__(
        self, loaded: LoadedModel, parameters: AttentionProfileParameters, sequences: range, length: int
    ) -> None:
        self._architecture, asked = loaded.architecture, parameters.repeated_sequences
        self._sequences = range(sequences.start, min(sequences.stop, max(sequences.start, asked)))
        candidates, start = _vocabulary(loaded)
        self.length = repeated.repeated_length(
            parameters.repeated_length, length, len(candidates), has_start=start is not None
        )
        shape = (len(_SCORES), self._architecture.layers, self._architecture.heads, len(self._sequences))
        self._scores = torch.empty(shape, device=loaded.model.device)
        self._batch = slice(0, 0)
        for first in range(0, len(self._sequences), parameters.batch):
            part = self._sequences[first : first + parameters.batch]
            tokens = [repeated.repeated_tokens(number, candidates, start, self.length) for number in part]
            self._batch = slice(first, first + len(part))
            forward_pass(loaded.model, torch.tensor(tokens, device=loaded.model.device), [self])

    def forward(self, attention: LayerAttention) -> None:
        self._scores[:, attention.layer, :, self._batch] = repeated.head_type_scores(attention).transpose(1, 2).float()

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing: no gradient is needed."""

    def columns(self) -> dict:
        keys = key_columns(self._architecture.layers, self._architecture.heads, self._sequences, range(1))
        del keys["query"]
        scores = self._scores.cpu().numpy().reshape(len(_SCORES), -1)
        return {**keys, **dict(zip(_SCORES, scores, strict=True))}


def _vocabulary(loaded: LoadedModel) -> tuple[list[int], int | None]:
    """Tokens to draw from, special ones left out, and the token that begins a text (none without a tokenizer)."""
    size, tokenizer = loaded.architecture.vocabulary_size, loaded.tokenizer
    if tokenizer is None:
        return list(range(size)), None
    begin = tokenizer.bos_token_id
    start = begin if isinstance(begin, int) else separator_id(tokenizer)
    special = {*tokenizer.all_special_ids, start}
    return [token for token in range(min(size, len(tokenizer))) if token not in special], start


_MEANING = {
    "output": "The output of the rows measured departs from the model's by {value:.3g} of the size of its parts",
    "entropy": "Entropies of the same row, taken in two ways, differ by {value:.3g} nats",
    "bound": "An entropy or a mass leaves its bounds by {value:.3g}",
}


def _require(name: str, value: float, tolerance: float) -> None:
    if not value <= tolerance:  # also when it is not a number
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"{_MEANING[name].format(value=value)}; {tolerance:g} is allowed.",
            "Try dtype float32. If it stays, the scores measured are not those of the model: report it.",
        )
