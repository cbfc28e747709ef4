"""Calibration: the attention gradient of the expected next token against that of the observed one.

    L_h = −log p_S(w*)        L_s = −Σ_w p_T(w) log p_S(w)        r = ‖∇_{s_hi} L_s‖₂ / ‖∇_{s_hi} L_h‖₂

for every layer, head h and query i, equations 45 to 47 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop,
Appendix A). w* is the token observed behind i, p_S the model (the student), p_T a teacher that stands for the
true distribution. Both losses are those of the one prediction made at i, and s_hi is that query's row of scores as they
enter the softmax, so ∂L/∂s_ij = a_ij δ_i·(v_j − y_i) with δ of own-token credit. A small r says that what
single tokens ask of attention cancels on average.

All queries of a sequence take one forward pass of the teacher, one of the student, and two backward passes through
it, one for each loss: about two forward and backward passes of the student where the teacher is as large.

r is NaN where the hard gradient is 0: in rows of one key, and at the last position, where nothing is observed.

Transfer sweeps are in ``calibration_sweeps``, with the second of two self-checks. The first is that of
``workers/attention/advantage.py``: Σ_j a_ij A_ij = 0 in the rows measured.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.calibration import SWEEP_TABLE, TABLE, CalibrationParameters
from workers.attention import advantage, rows, score_gradients, seam, soft_targets
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.soft_targets import Losses
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.models.vocabularies import common_vocabulary
from workers.probes import calibration_sweeps
from workers.probes.calibration_sweeps import SequenceRows
from workers.probes.measurement import Measurement, key_columns

HARD, SOFT = 0, 1


def measure(
    loaded: LoadedModel,
    parameters: CalibrationParameters,
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
    others: OtherModels,
) -> Measurement:
    """Gradient norms and transfer sweeps of sequences ``first_sequence`` … of the data set, whose tokens are given.

    Raises KeyholeError: model_unsupported (teacher of another tokenizer; model in which more than attention mixes
    positions), tokens_out_of_range, invalid_request (anchors the model does not have), self_check_failed.
    """
    teacher = others.keep(0)
    vocabulary = common_vocabulary(loaded, teacher)
    _require_within(token_ids, vocabulary)
    sequences, length = token_ids.shape
    observer = _GradientObserver(loaded, parameters.queries.positions(length), sequences)
    sweeps = calibration_sweeps.Sweeps(loaded, parameters, vocabulary)
    losses: list[Losses] = []
    for first in range(0, sequences, parameters.batch):
        ids = torch.as_tensor(
            token_ids[first : first + parameters.batch], dtype=torch.int64, device=loaded.model.device
        )
        observer.begin(slice(first, first + len(ids)))
        teacher_logits = _teacher_logits(teacher, ids)
        losses.append(_two_gradients(loaded, ids, teacher_logits, vocabulary, observer))
        _require_finite(losses[-1])
        for number in range(len(ids)):
            sweeps.add(
                first_sequence + first + number,
                ids[number],
                teacher_logits[number],
                observer.rows_of(first + number),
                (losses[-1].hard[number], losses[-1].soft[number]),
            )
    residual = float(observer.residual)
    advantage.check_identity(residual, loaded.model.dtype)
    checks = _mean_losses(losses) | {"max_identity_residual": residual} | sweeps.checks()
    shard = range(first_sequence, first_sequence + sequences)
    keys = key_columns(loaded.architecture.layers, loaded.architecture.heads, shard, observer.queries)
    return Measurement(rows={TABLE.name: keys | observer.columns(), SWEEP_TABLE.name: sweeps.columns()}, checks=checks)


def _teacher_logits(
    teacher: LoadedModel, ids: Int[Tensor, "sequence position"]
) -> Float[Tensor, "sequence position teacher_token"]:
    with torch.no_grad(), seam.observing(teacher.model):
        return teacher.model(ids, use_cache=False).logits


def _two_gradients(
    loaded: LoadedModel, ids: Tensor, teacher_logits: Tensor, vocabulary: int, observer: "_GradientObserver"
) -> Losses:
    """One forward pass and a backward pass for each loss, which the observer sees go by."""
    with torch.enable_grad(), seam.observing(loaded.model, [observer], credit="own_token", backwards=2):
        logits = loaded.model(ids, use_cache=False).logits
        losses, gradient = soft_targets.soft_gradient_(logits, teacher_logits, ids, vocabulary)
        observer.loss = SOFT
        torch.autograd.backward(logits, gradient, retain_graph=True)
        gradient = soft_targets.hard_gradient_(gradient, teacher_logits, ids, vocabulary)
        observer.loss = HARD
        torch.autograd.backward(logits, gradient)
    return losses


class _GradientObserver:
    """Reduces each layer's rows of gradients when a backward pass reaches it; soft first, then hard.

    Arrays are [layer, head, sequence, query], those of both losses with an axis (hard, soft) before.
    """

    def __init__(self, loaded: LoadedModel, queries: range, sequences: int) -> None:
        self.queries = queries
        self.loss = SOFT
        shape = (loaded.architecture.layers, loaded.architecture.heads, sequences, len(queries))
        device = loaded.model.device
        self._norms = torch.empty(2, *shape, dtype=torch.float64, device=device)
        # most attended key and the next, -1 if there is none; and ∂L/∂s of the first minus that of the second
        self._keys = torch.empty(2, *shape, dtype=torch.int32, device=device)
        self._slopes = torch.empty(2, *shape, dtype=torch.float64, device=device)
        self._batch = slice(0, 0)
        self.residual = torch.zeros((), dtype=torch.float64, device=device)

    def begin(self, sequences: slice) -> None:
        self._batch = sequences

    def forward(self, attention: LayerAttention) -> None:
        """Nothing: rows are computed when δ is there, so that no layer's rows wait for it."""

    @torch.no_grad()
    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        done = 0
        for positions in rows.query_blocks(self.queries, attention):
            credit = delta[:, rows.as_index(positions)].transpose(1, 2)
            found = score_gradients.of_block(attention, positions, credit)
            part = (attention.layer, slice(None), self._batch, slice(done, done + len(positions)))
            if self.loss == SOFT:
                self._keys[0][part], self._keys[1][part] = (keys.transpose(0, 1) for keys in _top_two_(found.scores))
            self._norms[self.loss][part] = torch.linalg.vector_norm(found.gradient, dim=-1).double().transpose(0, 1)
            first, second = (
                found.gradient.gather(3, keys[part].transpose(0, 1).long().clamp_min(0)[..., None])[..., 0]
                for keys in self._keys
            )
            self._slopes[self.loss][part] = (first - second).double().transpose(0, 1)
            # NaN stays: torch.maximum propagates it
            self.residual = torch.maximum(self.residual, found.residual.max().double())
            done += len(positions)

    def rows_of(self, sequence: int) -> SequenceRows:
        """What sweeps are chosen from, of one sequence of the shard after both passes."""
        norms, keys, slopes = (each[..., sequence, :].cpu().numpy() for each in (self._norms, self._keys, self._slopes))
        return SequenceRows(self.queries, _ratio(norms), norms, keys, slopes)

    def columns(self) -> dict[str, np.ndarray]:
        norms = self._norms.cpu().numpy()
        hard, soft = norms.reshape(2, -1).astype(np.float32)
        return {"r": _ratio(norms).reshape(-1).astype(np.float32), "hard_norm": hard, "soft_norm": soft}


def _ratio(norms: Float[np.ndarray, "2 layer head *rest"]) -> Float[np.ndarray, "layer head *rest"]:
    ratio = np.full(norms.shape[1:], np.nan)
    return np.divide(norms[SOFT], norms[HARD], out=ratio, where=norms[HARD] != 0)


def _top_two_(
    scores: Float[Tensor, "batch head query key"],
) -> tuple[Int[Tensor, "batch head query"], Int[Tensor, "batch head query"]]:
    """Keys of the largest and the second largest score of each row, -1 where there is no second. Changes ``scores``."""
    first = scores.argmax(-1, keepdim=True)
    largest, second = scores.scatter_(3, first, -torch.inf).max(-1)
    return first[..., 0].int(), torch.where(largest.isinf(), -1, second).int()


def _require_within(token_ids: Integer[np.ndarray, "sequence position"], vocabulary: int) -> None:
    largest = int(token_ids.max())
    if largest >= vocabulary:
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"The data has token {largest}; model and teacher have tokens 0 to {vocabulary - 1} in common.",
            "Choose a teacher whose vocabulary is as large as the model's.",
        )


def _mean_losses(losses: list[Losses]) -> dict[str, float]:
    named = {
        "loss_nats": [each.hard for each in losses],
        "soft_loss_nats": [each.soft for each in losses],
        "teacher_divergence_nats": [each.divergence for each in losses],
    }
    return {name: float(torch.cat(parts).double().mean()) for name, parts in named.items()}


def _require_finite(losses: Losses) -> None:
    for name, values in (("model's", losses.hard), ("soft", losses.soft)):
        if not values.isfinite().all():
            raise KeyholeError(
                ErrorCode.SELF_CHECK_FAILED,
                f"The {name} loss is {float(values.mean())} nats.",
                "The logits overflowed: try dtype float32, and look whether the weights of both models are finite.",
            )
