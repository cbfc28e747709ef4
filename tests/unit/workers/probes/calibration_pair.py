"""A student and a teacher measured by the probe, and the same by brute force in float64."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.contracts.probes.calibration import TABLE, CalibrationParameters
from services.contracts.probes.common import QueryRange
from tests.unit.workers import reference
from tests.unit.workers.families import HEADS, LAYERS
from tests.unit.workers.loaded import loaded
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.probes import calibration
from workers.probes.measurement import Measurement

LENGTH = 13  # longer than the families' window
EVERY_QUERY = QueryRange(start=0, step=1)


def measured(
    student, teacher, ids: Tensor, *, queries: QueryRange = EVERY_QUERY, first: int = 0, **parameters
) -> Measurement:
    sequences, length = ids.shape
    asked = CalibrationParameters(
        **{"sequences": first + sequences, "length": length, "batch": 2, "queries": queries} | parameters
    )
    student, teacher = (each if isinstance(each, LoadedModel) else loaded(each) for each in (student, teacher))
    return calibration.measure(student, asked, ids.numpy().astype(np.int32), first, OtherModels([lambda: teacher]))


def norms_of(measurement: Measurement, sequences: int, queries: int) -> dict[str, np.ndarray]:
    found = measurement.rows[TABLE.name]
    return {n: found[n].reshape(LAYERS, HEADS, sequences, queries) for n in ("r", "hard_norm", "soft_norm")}


def losses_at(recording: reference.Recording, teacher_logits: Tensor, ids: Tensor, position: int) -> list[Tensor]:
    """Hard and soft loss of the prediction at a position, by sequence; tokens beyond either vocabulary left out."""
    known = min(recording.logits.shape[-1], teacher_logits.shape[-1])
    logits, teacher = recording.logits[:, position, :known], teacher_logits[:, position, :known]
    hard = F.cross_entropy(logits, ids[:, position + 1], reduction="none")
    return [hard, F.cross_entropy(logits, teacher.softmax(-1), reduction="none")]


def expected_norms(student, teacher, ids: Tensor) -> tuple[np.ndarray, list[list[Tensor]]]:
    """Norms [loss, layer, head, sequence, query] and per layer and loss the gradients [sequence, head, query, key]:
    two backward passes for every prediction, through the untouched model."""
    recording = reference.record(student, ids)
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    scores = [layer.scores for layer in recording.layers]
    gradients = [[torch.zeros_like(each) for each in scores] for _ in range(2)]
    for position in range(ids.shape[1] - 1):
        for number, loss in enumerate(losses_at(recording, teacher_logits, ids, position)):
            found = torch.autograd.grad(loss.sum(), scores, retain_graph=True)
            for kept, gradient in zip(gradients[number], found, strict=True):
                kept[:, :, position] = gradient[:, :, position]
    norms = torch.stack([torch.stack([each.norm(dim=-1) for each in of_loss]) for of_loss in gradients])
    return norms.permute(0, 1, 3, 2, 4).detach().numpy(), gradients
