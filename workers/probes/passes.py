"""Passes of a model over the sequences of a shard, for the probes that watch them go by: one pass serves several.

Such a probe gives a ``Collector``. It sees each layer on the way forward, and δ = ∂L/∂y on the way back if the probe
needs the backward pass, and afterwards hands out its rows. A probe that fails takes no other one with it.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit, ProbeParameters
from workers.attention import seam
from workers.attention.inputs import LayerAttention, Outputs
from workers.attention.next_token import next_token_losses_
from workers.models.loaded import LoadedModel
from workers.probes.measurement import Measurement


class Collector(Protocol):
    """Gathers one probe's rows of a shard while passes go by; see ``workers.attention.seam.Observer``."""

    def begin(self, sequences: slice, token_ids: Integer[Tensor, "batch position"]) -> None:
        """The next pass is over these sequences of the shard, numbered from 0."""

    def forward(self, attention: LayerAttention) -> None: ...

    def backward(self, attention: LayerAttention, delta: Outputs) -> None: ...

    def result(self) -> Measurement:
        """Rows and checks after the last pass; raises KeyholeError (self_check_failed)."""
        ...


@dataclass(frozen=True)
class PassProbe:
    """A probe that only watches passes; ``collect(loaded, parameters, sequences, length)`` begins a shard.

    ``sequences`` are those of the data set, ``length`` the tokens in each.
    """

    collect: Callable[[LoadedModel, Any, range, int], Collector]
    backward: bool  # whether it needs δ
    hidden: bool = False  # whether it needs the inputs x of the attention modules


def measure(
    probe: PassProbe,
    loaded: LoadedModel,
    parameters: ProbeParameters,
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
) -> Measurement:
    """Measure sequences ``first_sequence`` … of the data set, whose tokens are given, for one probe.

    Raises KeyholeError (self_check_failed) when the loss is not finite or the probe's own check fails,
    (model_unsupported) when the model does not call the seam once per layer.
    """
    (outcome,) = measure_together(loaded, [(probe, parameters)], token_ids, first_sequence)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def measure_together(
    loaded: LoadedModel,
    tasks: Sequence[tuple[PassProbe, ProbeParameters]],
    token_ids: Integer[np.ndarray, "sequence position"],
    first_sequence: int,
) -> list[Measurement | Exception]:
    """The same for several probes in the same passes; what fails for one of them alone stands in its place.

    All tasks must have the same batch and, where they take one, the same credit. Raises what fails for all.
    """
    sequences, length = token_ids.shape
    shard = range(first_sequence, first_sequence + sequences)
    watchers = [_Watcher(probe, loaded, parameters, shard, length) for probe, parameters in tasks]
    backward = any(probe.backward for probe, _ in tasks)
    hidden = any(probe.hidden for probe, _ in tasks)
    credit: Credit = next((c for _, each in tasks if (c := getattr(each, "credit", None)) is not None), "sequence")
    batch = tasks[0][1].batch
    losses: list[float] = []
    for first in range(0, sequences, batch):
        ids = torch.as_tensor(token_ids[first : first + batch], dtype=torch.int64, device=loaded.model.device)
        for watcher in watchers:
            watcher.begin(slice(first, first + len(ids)), ids)
        if backward:
            losses += _forward_and_backward(loaded.model, ids, watchers, credit, hidden=hidden)
        else:
            forward_pass(loaded.model, ids, watchers, hidden=hidden)
    checks = {}
    if backward:
        checks["loss_nats"] = sum(losses) / sequences
        _require_finite(checks["loss_nats"])
    return [watcher.outcome(checks) for watcher in watchers]


def _forward_and_backward(
    model: PreTrainedModel, ids: Tensor, watchers: Sequence["_Watcher"], credit: Credit, *, hidden: bool
) -> list[float]:
    """One pass each way; returns each sequence's mean loss in nats."""
    with torch.enable_grad(), seam.observing(model, watchers, credit=credit, hidden=hidden):
        logits = model(ids, use_cache=False).logits
        losses, gradient = next_token_losses_(logits, ids, credit)
        torch.autograd.backward(logits, gradient)
    return losses.double().mean(1).tolist()


def forward_pass(
    model: PreTrainedModel, ids: Tensor, observers: Sequence[seam.Observer], *, hidden: bool = False
) -> None:
    """A forward pass without logits, where the model lets them be left out: they cost as much as several layers."""
    keep = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad(), seam.observing(model, observers, hidden=hidden):
        model(ids, use_cache=False, **keep)


class _Watcher:
    """Guards a collector: its error ends it, and not the pass. Memory that runs out ends everything."""

    def __init__(
        self, probe: PassProbe, loaded: LoadedModel, parameters: ProbeParameters, shard: range, length: int
    ) -> None:
        self._error: Exception | None = None
        self._collector: Collector
        self._backward = probe.backward

        def collect() -> None:
            self._collector = probe.collect(loaded, parameters, shard, length)

        self._guarded(collect)

    def begin(self, sequences: slice, ids: Tensor) -> None:
        self._guarded(lambda: self._collector.begin(sequences, ids))

    def forward(self, attention: LayerAttention) -> None:
        self._guarded(lambda: self._collector.forward(attention))

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        if self._backward:
            self._guarded(lambda: self._collector.backward(attention, delta))

    def outcome(self, checks: dict[str, float]) -> Measurement | Exception:
        found: list[Measurement] = []
        self._guarded(lambda: found.append(self._collector.result()))
        if self._error is not None:
            return self._error
        shared = checks if self._backward else {}
        return Measurement(found[0].rows, {**shared, **found[0].checks})

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            with torch.no_grad():
                act()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a probe may meet; it is reported with the probe's job
            self._error = error


def _require_finite(loss_nats: float) -> None:
    if not np.isfinite(loss_nats):
        raise KeyholeError(
            ErrorCode.SELF_CHECK_FAILED,
            f"The model's loss is {loss_nats} nats.",
            "The logits overflowed: try dtype float32, and look whether the model's weights are finite.",
        )
