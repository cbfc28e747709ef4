"""A trainer put together: from a job's sources, or from the files of a checkpoint that it goes on from.

What is needed of a checkpoint is in its files, so that the model's source need not be at hand on the worker that goes
on with a run. Every process of a run assembles the same trainer by itself.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.training.training import TrainingParameters
from services.sources.model_folder import TOKENIZER_FILES
from services.sources.tokenizers import resolve_tokenizer
from workers.models.loaded import Architecture, describe
from workers.models.memory import require_training_memory
from workers.models.tokenizer import load_tokenizer
from workers.training import data, start, state
from workers.training.ranks import Ranks
from workers.training.training import Trainer

CHECKPOINT_FILES = ("config.json", *TOKENIZER_FILES, state.FILE)


@dataclass(frozen=True)
class Order:
    """What a run is made of, as submitted."""

    model_source: str
    model_identity: str
    dataset_source: str
    dataset_identity: str
    parameters: TrainingParameters
    model_folder: Path | None = None  # with the model's files, if its source is a checkpoint
    pinned: Mapping[str, str] = field(default_factory=dict)  # identity of what a parameter names, by its name


@dataclass(frozen=True)
class Assembled:
    trainer: Trainer
    tokenizer: PreTrainedTokenizerFast | None
    architecture: Architecture
    parity: dict[str, Any] | None  # of models that were made from their source now
    stored_with: dict[str, Any] | None  # surroundings of the state that the run goes on from


def assembled(
    order: Order,
    checkpoint: Path | None,
    device: str,
    settings: Settings,
    *,
    ranks: Ranks | None = None,
    phase: Callable[[str], None] = lambda name: None,
) -> Assembled:
    """The trainer of a run, at its start or, with a folder of ``CHECKPOINT_FILES``, where that was stored.

    ``phase`` is told what is done. Raises KeyholeError as loading the model and reading the data do, and
    out_of_memory, before the data are read, where a step would not fit.
    """
    parameters = order.parameters
    prefer_determinism(device)
    phase("loading model")
    parity = None
    if checkpoint is None:
        begun = start.prepare_start(
            order.model_source, order.model_identity, parameters.seed, device, settings, order.model_folder
        )
        model, tokenizer, pretrained, parity = begun.model, begun.tokenizer, begun.pretrained, begun.parity
    else:
        config = json.loads((checkpoint / "config.json").read_text())
        model, pretrained = start.from_config(config, device), True
        tokenizer = load_tokenizer(checkpoint) if (checkpoint / "tokenizer.json").is_file() else None
    architecture = describe(model)
    require_training_memory(architecture, parameters, device)
    phase("reading data")
    if checkpoint is None and (tokenizer_then := order.pinned.get("data.tokenizer")):
        now = resolve_tokenizer(parameters.data.tokenizer, settings).identity
        _require_same(f"tokenizer of {parameters.data.tokenizer}", tokenizer_then, now, ErrorCode.MODEL_CHANGED)
    prepared = data.prepare(
        order.dataset_source,
        parameters,
        model_tokenizer=tokenizer,
        run_tokenizer=None if checkpoint is None else tokenizer,
        vocabulary_size=architecture.vocabulary_size,
        settings=settings,
    )
    _require_same(f"data set at {order.dataset_source}", order.dataset_identity, prepared.identity)
    if validation_then := order.pinned.get("data.validation_dataset"):
        named = f"validation data set at {parameters.data.validation_dataset}"
        _require_same(named, validation_then, prepared.validation_identity)
    trainer = Trainer(model, parameters, prepared, device=device, pretrained=pretrained, ranks=ranks)
    stored_with = None if checkpoint is None else trainer.resume(checkpoint / state.FILE)
    return Assembled(trainer, prepared.tokenizer, architecture, parity, stored_with)


def prefer_determinism(device: str) -> None:
    """On a CPU all that training does has a deterministic form; it costs nothing but the filling of new tensors.

    On a GPU the backward passes of attention and embeddings would become slower, and stay as they are.
    """
    torch.use_deterministic_algorithms(device == "cpu", warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # missing in torch's stubs


def _require_same(what: str, submitted: str, now: str, code: ErrorCode = ErrorCode.DATASET_CHANGED) -> None:
    if now != submitted:
        raise KeyholeError(
            code,
            f"The {what} is now {now}; submitted was {submitted}.",
            "Submit the job again to train on what it is now.",
        )
