"""Hard and soft losses of each prediction, and their gradients at the student's logits, written over those logits.

    L_h = −log p_S(w*)        L_s = −Σ_w p_T(w) log p_S(w)          (equations 45 and 46 of "Stuck in a Loop")

for the observed next token w* and the teacher's probabilities p_T, with gradients p_S − 1(w*) and p_S − p_T at the
logits. Both gradients take the place of the student's logits one after the other, a few rows at a time: soft first,
then hard, which is the soft one plus p_T minus 1(w*). So nothing is made that is as large as the logits.

Only the first ``vocabulary`` tokens count, those that both models know: probabilities are normalised over them, and
the gradient at the student's further logits is 0.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workers.attention.next_token import CHUNK
from workers.attention.rows import at_least_float32


@dataclass(frozen=True)
class Losses:
    """In nats, of every position but the last, which predicts nothing that was observed."""

    hard: Float[Tensor, "sequence predicted"]
    soft: Float[Tensor, "sequence predicted"]
    divergence: Float[Tensor, "sequence predicted"]  # KL(p_T ‖ p_S), by how much the soft loss could fall


def soft_gradient_(
    logits: Float[Tensor, "sequence position token"],
    teacher_logits: Float[Tensor, "sequence position teacher_token"],
    token_ids: Int[Tensor, "sequence position"],
    vocabulary: int,
) -> tuple[Losses, Float[Tensor, "sequence position token"]]:
    """All losses, and the gradient of the sum of the soft ones, in the memory of ``logits``, which are lost."""
    sequences, length, _ = logits.shape
    targets = token_ids.roll(-1, 1).reshape(-1, 1)
    flat, teacher = logits.detach().flatten(0, 1), teacher_logits.flatten(0, 1)
    weights = _weights(token_ids)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    losses = torch.empty(3, len(flat), dtype=dtype, device=logits.device)
    for part in _chunks(flat):
        student_log, teacher_log = (_log_probabilities(each[part, :vocabulary]) for each in (flat, teacher))
        probabilities = teacher_log.exp()
        losses[0, part] = -student_log.gather(1, targets[part])[:, 0]
        losses[1, part] = -(probabilities * student_log).sum(1)
        losses[2, part] = (probabilities * teacher_log.sub_(student_log)).sum(1)
        flat[part, :vocabulary] = student_log.exp_().sub_(probabilities).mul_(weights[part]).to(flat.dtype)
        flat[part, vocabulary:] = 0
    hard, soft, divergence = losses.view(3, sequences, length)[:, :, :-1]
    return Losses(hard, soft, divergence), flat.view_as(logits)


def hard_gradient_(
    soft_gradient: Float[Tensor, "sequence position token"],
    teacher_logits: Float[Tensor, "sequence position teacher_token"],
    token_ids: Int[Tensor, "sequence position"],
    vocabulary: int,
) -> Float[Tensor, "sequence position token"]:
    """Gradient of the sum of the hard losses, in the memory of that of the soft ones, which is lost."""
    targets = token_ids.roll(-1, 1).reshape(-1, 1)
    flat, teacher = soft_gradient.flatten(0, 1), teacher_logits.flatten(0, 1)
    weights = _weights(token_ids)
    for part in _chunks(flat):
        probabilities = _log_probabilities(teacher[part, :vocabulary]).exp_()
        gradient = probabilities.mul_(weights[part]).add_(flat[part, :vocabulary])
        gradient.scatter_add_(1, targets[part], -weights[part].to(gradient.dtype))
        flat[part, :vocabulary] = gradient.to(flat.dtype)
    return flat.view_as(soft_gradient)


def losses_of_rows(
    logits: Float[Tensor, "row token"],
    teacher_logits: Float[Tensor, "row teacher_token"],
    targets: Int[Tensor, " row"],
    vocabulary: int,
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Hard and soft losses in nats of single predictions."""
    student_log, teacher_log = (_log_probabilities(each[:, :vocabulary]) for each in (logits, teacher_logits))
    return -student_log.gather(1, targets[:, None])[:, 0], -(teacher_log.exp_() * student_log).sum(1)


def _weights(token_ids: Tensor) -> Float[Tensor, "row 1"]:
    """1 for every position that predicts an observed token, 0 for the last."""
    weights = torch.ones(token_ids.shape, device=token_ids.device)
    weights[:, -1] = 0
    return weights.view(-1, 1)


def _chunks(flat: Tensor) -> list[slice]:
    rows = max(1, CHUNK // flat.shape[1])
    return [slice(first, first + rows) for first in range(0, len(flat), rows)]


def _log_probabilities(logits: Tensor) -> Tensor:
    return at_least_float32(logits).log_softmax(-1)
