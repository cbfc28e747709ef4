"""NATQ, equations 42-44 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop).

The mathematics is in ``workers/attention/natq.py``. It goes into the seam's slot for the query gradient, in training
passes only: the model is unchanged, and a checkpoint carries nothing of it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.contracts.training.variants import Natq
from workers.attention.inputs import AttentionInputs
from workers.attention.natq import Report, Solver, transform
from workers.attention.seam import QueryGradient


@dataclass
class _Layer:
    """Of the backward passes of a layer since the last call of ``rows``; numbers stay on the device until then."""

    residual: Tensor  # [batch, head, position], of the newest pass
    largest: Tensor
    passes: int
    solved: Tensor  # rows
    iterations: Tensor
    unfinished: Tensor
    zero: Tensor


class SolverLog:
    """What the solvers came to, by layer, gathered while nobody waits for it.

    Metrics: ``natq_residual_median`` of the rows of the newest backward pass, ``natq_residual_max`` of all passes since
    the last call (‖r‖ / (λ‖x‖), a bound on the relative error); of conjugate gradients ``natq_iterations``, their mean
    over rows, and ``natq_fallback_share``, the share of rows that were not done in the iterations allowed; and
    ``natq_zero_rows``, rows of a pass that keep their gradient because it or their Fisher matrix is 0.
    """

    def __init__(self) -> None:
        self._layers: dict[int, _Layer] = {}

    def add(self, layer: int, report: Report) -> None:
        """Take in one backward pass of a layer."""
        seen = self._layers.get(layer)
        found = _Layer(
            # −1 is no residual; rows that keep their gradient have none
            residual=report.residual.masked_fill(report.zero, -1),
            largest=report.residual.amax(),
            passes=1,
            solved=report.zero.logical_not().sum(),
            iterations=report.iterations.sum(),
            unfinished=report.unfinished.sum(),
            zero=report.zero.sum(),
        )
        if seen is not None:
            found.largest = torch.maximum(found.largest, seen.largest)
            for count in ("passes", "solved", "iterations", "unfinished", "zero"):
                setattr(found, count, getattr(found, count) + getattr(seen, count))
        self._layers[layer] = found

    def rows(self) -> list[tuple[str, int | None, float]]:
        """(metric, layer, value) since the last call; nothing of layers that had no backward pass."""
        layers, self._layers = self._layers, {}
        found: list[tuple[str, int | None, float]] = []
        for layer, seen in sorted(layers.items()):
            solved = int(seen.solved)
            found.append(("natq_zero_rows", layer, float(seen.zero) / seen.passes))
            if solved == 0:
                continue
            residual = seen.residual[seen.residual >= 0]
            if len(residual):
                found.append(("natq_residual_median", layer, float(np.median(residual.cpu().numpy()))))
            found.append(("natq_residual_max", layer, float(seen.largest)))
            found.append(("natq_iterations", layer, float(seen.iterations) / solved))
            found.append(("natq_fallback_share", layer, float(seen.unfinished) / solved))
        return found


def query_gradient(variant: Natq, log: SolverLog) -> QueryGradient:
    """The seam's query-gradient transform; its residuals go to the log."""
    solver = Solver(variant.solver, variant.damping, variant.tolerance, variant.iterations, variant.fallback)

    def natural(inputs: AttentionInputs) -> Tensor:
        return transform(inputs, solver, log.add)

    return natural
