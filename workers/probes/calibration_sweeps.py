"""Transfer sweeps: losses of one prediction while attention is moved between two keys of one of its rows.

c is added to the pre-softmax score of the first key and subtracted from that of the second, in one layer, head and
query and nowhere else, for c in equal steps over [−range, range] (Table 8 of "Stuck in a Loop"). A sequence's sweeps,
and those of the self-check, take one forward pass together (``workers/attention/offset.py``).

Anchors are the two most attended keys of a row. Rows are chosen among those whose anchors both lie behind the first
token: of the rows with r ≤ 0.1 those whose hard loss reacts most to c, |∂L_h/∂c| at c = 0, then rows of larger
r, the smallest first; of each query one row at most. The choice depends on nothing but the sequence.

Self-check: dL/dc at c = 0 is the difference of the two scores' gradients. In every sequence with sweeps, and in every
sixteenth otherwise, one row with a strong hard gradient is taken, in a layer that changes from sequence to sequence,
and the gradients by own-token credit are compared with central differences of both losses through the sweep's own
forward pass. A bfloat16 model rounds its logits too coarsely for that; there only the losses at c = 0 are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.calibration import SWEEP_TABLE, CalibrationParameters
from workers.attention import offset, soft_targets
from workers.attention.offset import Branch
from workers.models.loaded import LoadedModel

LOW_R = 0.1  # the article's four examples have r up to 0.098
CHECKED_EVERY = 16
# Step of the central differences, of fourth order: what they leave out falls with its fourth power, while rounding of
# the losses weighs 1.5 / STEP. Measured in float32 on the test families: up to 4e-1 of a slope left out at 0.25, 6e-4
# at 0.02, where rounding gives 1e-4.
STEP = 0.02
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
# Largest departure of a central difference, in units of √2‖∇_s L‖ (what a slope can be at most; of the larger of both
# gradients) + ROUNDING_NATS / STEP. Measured: up to 6e-4 on smooth test families, 2e-3 on SmolLM2-135M; a kink of a
# ReLU between two steps gave 4e-2 (OPT). Wrong gradients are off by a third and more.
SLOPE_TOLERANCE = 0.1
ROUNDING_NATS = {torch.float64: 1e-6, torch.float32: 1e-4}
# Largest difference in nats of a loss from the measuring pass. Measured on SmolLM2-135M: 1e-5, in bfloat16 7e-2.
LOSS_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class SequenceRows:
    """All measured rows of one sequence; axes (hard, soft) or (first, second) come first."""

    queries: range
    r: Float[np.ndarray, "layer head query"]
    norms: Float[np.ndarray, "2 layer head query"]
    keys: Int[np.ndarray, "2 layer head query"]  # the two most attended, -1 where there is none
    slopes: Float[np.ndarray, "2 layer head query"]  # dL/dc at c = 0 with these anchors


@dataclass(frozen=True)
class Sweep:
    layer: int
    head: int
    sequence: int
    query: int
    first_key: int
    second_key: int
    r: float
    chosen: bool


def choose(found: SequenceRows, sequence: int, count: int) -> list[Sweep]:
    """The sequence's ``count`` rows to sweep, fewer where there are not as many."""
    eligible = (found.keys > 0).all(0) & (found.norms[0] > 0) & np.isfinite(found.r)
    places = np.argwhere(eligible)
    r, strength = found.r[eligible], np.abs(found.slopes[0][eligible])
    low = r <= LOW_R
    # low ones first, by their slope; then the others by r; ties by place
    order = np.lexsort((np.where(low, -strength, r), ~low))
    chosen: list[Sweep] = []
    taken: set[int] = set()
    for layer, head, number in places[order].tolist():
        if len(chosen) == count:
            break
        if number in taken:
            continue
        taken.add(number)
        first, second = found.keys[:, layer, head, number].tolist()
        r_of_row = float(found.r[layer, head, number])
        chosen.append(Sweep(layer, head, sequence, found.queries[number], first, second, r_of_row, True))
    return chosen


class Sweeps:
    """Gathers the sweeps of a shard, one sequence after another."""

    def __init__(self, loaded: LoadedModel, parameters: CalibrationParameters, vocabulary: int) -> None:
        self._loaded, self._parameters, self._vocabulary = loaded, parameters, vocabulary
        half = parameters.sweep_points // 2
        self._offsets = [parameters.sweep_range * (step / half) for step in range(-half, half + 1)]
        self._records: list[tuple] = []
        self._checks: dict[str, float] = {}

    def add(
        self,
        sequence: int,
        token_ids: Int[Tensor, " position"],
        teacher_logits: Float[Tensor, "position teacher_token"],
        found: SequenceRows,
        losses: tuple[Float[Tensor, " predicted"], Float[Tensor, " predicted"]],
    ) -> None:
        """Sweep what is chosen and asked for in this sequence; ``losses`` are its hard and soft ones as measured."""
        sweeps = self._asked(sequence, found)
        chosen = choose(found, sequence, self._parameters.sweeps_per_sequence)
        places = {(sweep.layer, sweep.head, sweep.query, sweep.first_key, sweep.second_key) for sweep in sweeps}
        sweeps += [s for s in chosen if (s.layer, s.head, s.query, s.first_key, s.second_key) not in places]
        due = bool(sweeps) or sequence % CHECKED_EVERY == 0
        check = _strong_row(found, sequence) if due and self._loaded.model.dtype in ROUNDING_NATS else None
        branches = [_branch(sweep, c) for sweep in sweeps for c in self._offsets]
        if check is not None:
            branches += [_branch(check, step * STEP) for step, _ in _STENCIL]
        if not branches:
            return
        measured = offset.branched(self._loaded.model, token_ids, branches)
        queries = torch.tensor([branch.query for branch in branches], device=token_ids.device)
        hard, soft = soft_targets.losses_of_rows(
            measured.logits, teacher_logits[queries], token_ids[queries + 1], self._vocabulary
        )
        by_loss = torch.stack([hard, soft]).double().cpu().numpy()
        swept = by_loss[:, : len(sweeps) * len(self._offsets)].reshape(2, len(sweeps), len(self._offsets))
        weights = measured.weights.cpu().numpy()
        self._compare_losses(swept[..., len(self._offsets) // 2], [sweep.query for sweep in sweeps], losses)
        if check is not None:
            self._compare_slopes(by_loss[:, -len(_STENCIL) :], check, found)
        for number, sweep in enumerate(sweeps):
            key = (sweep.layer, sweep.head, sweep.sequence, sweep.query, sweep.first_key, sweep.second_key)
            for place, c in enumerate(self._offsets):
                pair = weights[number * len(self._offsets) + place]
                self._records.append((*key, c, sweep.r, sweep.chosen, *pair, *swept[:, number, place]))

    def columns(self) -> dict[str, np.ndarray]:
        """Rows of the table, sorted by everything that tells points apart."""
        types = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "float8": np.float64, "bool": np.bool_}
        records = sorted(self._records, key=lambda record: record[:7])
        return {
            column.name: np.array([record[place] for record in records], dtype=types[column.type])
            for place, column in enumerate(SWEEP_TABLE.columns[1:])
        }

    def checks(self) -> dict[str, float]:
        return dict(self._checks)

    def _asked(self, sequence: int, found: SequenceRows) -> list[Sweep]:
        """The job's own anchors of this sequence."""
        asked = dict.fromkeys(
            (a.layer, a.head, a.query, a.first_key, a.second_key)
            for a in self._parameters.anchors
            if a.sequence == sequence
        )
        layers, heads = found.r.shape[:2]
        sweeps = []
        for layer, head, query, first, second in asked:
            known = layer < layers and head < heads  # if not, the forward pass says so
            r = float(found.r[layer, head, found.queries.index(query)]) if known else np.nan
            sweeps.append(Sweep(layer, head, sequence, query, first, second, r, False))
        return sweeps

    def _compare_losses(
        self, at_zero: Float[np.ndarray, "2 sweep"], queries: Sequence[int], losses: tuple[Tensor, Tensor]
    ) -> None:
        """The losses at c = 0 are those of the measuring pass."""
        if not queries:
            return
        measured = torch.stack(losses)[:, list(queries)].double().cpu().numpy()
        difference = float(np.abs(at_zero - measured).max())
        tolerance = LOSS_TOLERANCE[self._loaded.model.dtype]
        self._note("max_sweep_loss_difference", difference)
        if not difference <= tolerance:
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"A loss at c = 0 of a sweep differs by {difference:.3g} nats from the one measured; {tolerance:g} is "
                "allowed.",
                "Try dtype float32. If it stays, positions are not computed alone as in the sequence: report it.",
            )

    def _compare_slopes(self, stencil: Float[np.ndarray, "2 step"], check: Sweep, found: SequenceRows) -> None:
        """Central differences of both losses are the differences of the gradients at the two scores."""
        place = (slice(None), check.layer, check.head, found.queries.index(check.query))
        differences = stencil @ [weight for _, weight in _STENCIL] / STEP
        scale = np.sqrt(2) * found.norms[place].max() + ROUNDING_NATS[self._loaded.model.dtype] / STEP
        residual = float((np.abs(differences - found.slopes[place]) / scale).max())
        self._note("max_slope_residual", residual)
        if not residual <= SLOPE_TOLERANCE:
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"Gradients at two scores of layer {check.layer}, head {check.head}, query {check.query} depart by "
                f"{residual:.3g} of their norm from differences of the loss; {SLOPE_TOLERANCE:g} is allowed.",
                "If it stays, the gradients measured are not those of the model's predictions: report it.",
            )

    def _note(self, name: str, value: float) -> None:
        self._checks[name] = float(np.maximum(self._checks.get(name, 0.0), value))  # NaN stays


def _branch(sweep: Sweep, c: float) -> Branch:
    return Branch(sweep.layer, sweep.head, sweep.query, (sweep.first_key, sweep.second_key), (c, -c))


def _strong_row(found: SequenceRows, sequence: int) -> Sweep | None:
    """The row of one layer whose hard loss reacts most to moving attention between its two most attended keys."""
    layer = sequence % found.r.shape[0]
    strength = np.where((found.keys[:, layer] >= 0).all(0), np.abs(found.slopes[0, layer]), 0.0)
    head, number = np.unravel_index(strength.argmax(), strength.shape)
    if strength[head, number] == 0:
        return None
    first, second = found.keys[:, layer, head, number].tolist()
    r = float(found.r[layer, head, number])
    return Sweep(layer, int(head), sequence, found.queries[int(number)], first, second, r, False)
