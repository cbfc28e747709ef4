"""Spectral norms of a model's matrices and of what one optimizer step changed them by.

Reparametrised layers are measured as they are used. Nothing is kept between the steps that are asked; at such a step
all matrices are there three times: before it, after it, and their difference, beside copies of those of one shape.
"""

from collections import defaultdict

import torch
from transformers import PreTrainedModel

from services.contracts.training.numbers import Matrix
from workers.attention.spectral import largest_singular_value
from workers.training.linear_layers import matrices


class Spectra:
    """At a step that is asked: ``before_step()``, the optimizer's step, ``after_step(step)``."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._matrices = matrices(model)
        self._before: list[torch.Tensor] | None = None

    @torch.no_grad()
    def before_step(self) -> None:
        """Keep all weights until ``after_step``."""
        self._before = [matrix.weight().clone() for matrix in self._matrices]

    @torch.no_grad()
    def after_step(self, step: int) -> list[Matrix]:
        """Norms of all matrices after step ``step``, and of their change since ``before_step``, if that was called."""
        now = [matrix.weight() for matrix in self._matrices]
        sigmas = _norms(now)
        if self._before is None:
            updates: list[float | None] = [None] * len(now)
        else:
            updates = [*_norms([weight - old for weight, old in zip(now, self._before, strict=True)])]
        self._before = None
        return [
            Matrix(step, matrix.layer, matrix.name, weight.shape[0], weight.shape[1], sigma, update)
            for matrix, weight, sigma, update in zip(self._matrices, now, sigmas, updates, strict=True)
        ]


def _norms(weights: list[torch.Tensor]) -> list[float]:
    """‖W‖₂ of each; those of one shape together, so that a model takes a few batched products."""
    groups = defaultdict(list)
    for number, weight in enumerate(weights):
        groups[weight.shape].append(number)
    found = [0.0] * len(weights)
    for numbers in groups.values():
        stacked = torch.stack([weights[number].float() for number in numbers])
        for number, sigma in zip(numbers, largest_singular_value(stacked).tolist(), strict=True):
            found[number] = sigma
    return found
