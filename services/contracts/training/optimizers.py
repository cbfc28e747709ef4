"""Optimizers and the schedule of their learning rate."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from services.contracts.parameters import Parameters

LearningRate = Annotated[float, Field(gt=0, le=100, description="learning rate at the top of the schedule")]
WeightDecay = Annotated[
    float, Field(ge=0, le=100, description="decoupled weight decay of matrices; vectors and embeddings have none")
]
Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Parameters):
    name: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 1e-3
    weight_decay: WeightDecay = 0.1
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8


class Sgd(Parameters):
    name: Literal["sgd"] = "sgd"
    learning_rate: LearningRate = 0.1
    weight_decay: WeightDecay = 0.0
    momentum: Beta = 0.9


class Muon(Parameters):
    """Muon for the matrices inside the layers, AdamW for embeddings, norms and biases."""

    name: Literal["muon"] = "muon"
    learning_rate: LearningRate = 0.02
    weight_decay: WeightDecay = 0.1
    momentum: Beta = 0.95
    adamw_learning_rate: Annotated[
        float, Field(gt=0, le=100, description="learning rate of the parameters that AdamW takes")
    ] = 1e-3


def _with_name(value: Any) -> Any:
    """A plain name stands for the optimizer with its defaults; without a name AdamW is meant."""
    if isinstance(value, str):
        return {"name": value}
    return {"name": "adamw", **value} if isinstance(value, dict) else value


Optimizer = Annotated[Annotated[AdamW | Sgd | Muon, Discriminator("name")], BeforeValidator(_with_name)]


class Schedule(Parameters):
    """Learning rate by step: a linear warm-up, then a decay to ``final`` times the top."""

    shape: Annotated[
        Literal["cosine", "linear", "constant", "trapezoidal"],
        Field(description="decay after the warm-up; trapezoidal is constant, then linear over the last steps"),
    ] = "cosine"
    warmup_steps: Annotated[
        int, Field(ge=0, le=10**9, description="steps of linear warm-up; a shorter run never comes to the top")
    ] = 50
    decay_steps: Annotated[
        int | None, Field(ge=1, description="of trapezoidal: steps of the decay; none is a fifth of all")
    ] = None
    final: Annotated[float, Field(ge=0, le=1, description="learning rate at the end, in units of the top")] = 0.0

    def factor(self, step: int, steps: int) -> float:
        """Factor of the top learning rate in step ``step``, 0-based, of ``steps``."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        start = self.warmup_steps
        if self.shape == "trapezoidal":
            start = max(start, steps - (self.decay_steps or max(1, steps // 5)))
            if step < start:
                return 1.0
        done = (step - start) / max(1, steps - start)
        left = 0.5 * (1 + math.cos(math.pi * done)) if self.shape == "cosine" else 1 - done
        return self.final + (1 - self.final) * left
