"""Runs that take seconds: a model of two layers, and tokens in which every second one repeats the one before."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from services.contracts.sources import parse_model_source
from services.contracts.training.numbers import Matrix, Metric
from services.contracts.training.training import TrainingParameters
from workers.training import start
from workers.training.data import TrainingData
from workers.training.ranks import Ranks
from workers.training.sequences import Part, TokenSequences
from workers.training.training import DueCheckpoint, Trainer

VOCABULARY, LENGTH = 64, 32
MODEL = f"config:gpt-tiny?layers=2&width=32&heads=2&mlp=64&context={LENGTH}&vocabulary={VOCABULARY}"


class Told:
    """A sink that remembers what it was told."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self.matrices: list[Matrix] = []
        self.checkpoints: list[DueCheckpoint] = []
        self.steps: list[int] = []

    def measured(self, metrics: Sequence[Metric], matrices: Sequence[Matrix]) -> None:
        self.metrics += metrics
        self.matrices += matrices

    def took(self, step: int) -> None:
        self.steps.append(step)

    def checkpoint(self, checkpoint: DueCheckpoint) -> None:
        self.checkpoints.append(checkpoint)

    def curve(self, name: str) -> dict[int, float]:
        """The model's rows of a metric, by step."""
        return {row.step: row.value for row in self.metrics if row.metric == name and row.layer is None}

    def comparable(self) -> list[Metric]:
        """All rows but those of time."""
        return [row for row in self.metrics if row.metric != "tokens_per_s"]


def parameters(**changed: Any) -> TrainingParameters:
    return TrainingParameters.model_validate(
        {
            "steps": 12,
            "sequences_per_step": 8,
            "batch": 3,
            "length": LENGTH,
            "schedule": {"warmup_steps": 3},
            "validation": {"every": 5, "log_every": 2, "attention_sequences": 2},
            "checkpoints": {"every": 5, "log_spaced": True},
            **changed,
        }
    )


def small_data(length: int = LENGTH) -> TrainingData:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (72, length), dtype=np.int32)
    tokens[:, 1::2] = tokens[:, ::2]
    there = TokenSequences([Part("small", tokens)], length, VOCABULARY)
    return TrainingData(
        training=there.between(8, 72),
        validation=there.take(np.arange(8)),
        validation_bytes=1000,
        tokenizer=None,
        identity="small",
        validation_identity="small",
    )


def trainer(of: TrainingParameters, model: str = MODEL, *, ranks: Ranks | None = None) -> Trainer:
    network = start.from_configuration(parse_model_source(model), of.seed, "cpu")
    return Trainer(network, of, small_data(of.length), device="cpu", ranks=ranks)


def trained(of: TrainingParameters, model: str = MODEL) -> tuple[Trainer, Told]:
    """A run from its start to its end, and what it told; the last checkpoint among it."""
    made, told = trainer(of, model), Told()
    made.begin(told)
    told.checkpoint(made.advance(of.steps, told))
    return made, told


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in made.model.state_dict().items()}


def assert_equal_weights(one: Trainer, other: Trainer) -> None:
    """Bit for bit."""
    expected, found = one.model.state_dict(), other.model.state_dict()
    assert expected.keys() == found.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
    assert different == []
