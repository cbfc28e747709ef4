"""A training run: steps, validations, and the moments at which a checkpoint is due.

The trainer computes; whom it tells (``Sink``) and where checkpoints go is the attempt's business (training_job.py).
Given the same parameters, data and number of threads it computes the same weights on a CPU, bit for bit, whether it
runs through or is made again from a stored state at any step: no random numbers are drawn after the start, and the
order of data follows from the step's number. See docs/training/training.md.
"""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from services.contracts.training.numbers import Matrix, Metric
from services.contracts.training.training import TrainingParameters
from workers.attention import seam
from workers.training import due, loop, optimizers, state, variants
from workers.training.attention_metrics import attention_metrics
from workers.training.compiling import compiled, compiling
from workers.training.data import TrainingData, sequences_of_step
from workers.training.divergence import Watch
from workers.training.ranks import Ranks
from workers.training.spectra import Spectra
from workers.training.tokenizer import tokenizer_files
from workers.training.validation import bits_per_byte, validation_loss_nats

_MOST_UNSEEN = 16  # steps whose loss was not looked at yet: a look makes the CPU wait for a GPU


@dataclass(frozen=True)
class DueCheckpoint:
    """A checkpoint that is due now; the trainer's ``write_model`` and ``write_state`` make its files."""

    step: int
    reasons: tuple[str, ...]  # may be empty at the end of a segment
    validation_loss_nats: float | None  # if this step was validated


class Sink(Protocol):
    """Who is told of a run."""

    def measured(self, metrics: Sequence[Metric], matrices: Sequence[Matrix]) -> None:
        """Numbers of the step just taken."""

    def took(self, step: int) -> None:
        """A step was taken: a moment to write what was measured."""

    def checkpoint(self, checkpoint: DueCheckpoint) -> None:
        """Store the model as it is now."""


class Trainer:
    """``model`` has float32 weights, hangs on the seam and is on ``device``; the trainer changes it."""

    def __init__(
        self,
        model: PreTrainedModel,
        parameters: TrainingParameters,
        data: TrainingData,
        *,
        device: str,
        pretrained: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.parameters, self.data, self.device = model, parameters, data, device
        self.ranks = ranks or Ranks()
        self.step = 0
        self._installed = variants.install(model, parameters.variants, pretrained=pretrained)
        self._optimizers = optimizers.build(model, parameters.optimizer)
        self._weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._spectra = Spectra(model) if parameters.validation.spectra and self.ranks.first else None
        self._watch = Watch()
        self._best_nats: float | None = None
        self._unseen: list[tuple[int, loop.Taken]] = []
        self._timed_s, self._timed_steps = 0.0, 0  # since the last row of tokens_per_s
        self._trained = compiled(model, self._installed) if parameters.compile else model

    def begin(self, sink: Sink) -> None:
        """Measure and store the model as it starts."""
        assert self.step == 0
        self._looked_at(sink)

    def advance(self, stop: int, sink: Sink) -> DueCheckpoint:
        """Train up to step ``stop`` and return the checkpoint that is due there; those before go to the sink.

        Raises DivergedError; nothing that is due at that step or later has then been told.
        """
        due_now = DueCheckpoint(self.step, (), None)
        while self.step < stop:
            self._one_step(sink, last=self.step + 1 == stop)
            due_now = self._looked_at(sink, keep=self.step == stop)
            sink.took(self.step)
        return due_now

    def _one_step(self, sink: Sink, *, last: bool) -> None:
        """Take a step; the ``last`` before others are told is looked at, so that nothing not finite is stored."""
        parameters, number = self.parameters, self.step + 1
        spectra = self._spectra if due.is_validated(parameters, number) else None
        logged = due.is_logged(parameters, number)
        if logged:
            self._installed.log()  # rows are of this step alone
        started = time.perf_counter()
        self.model.train()
        with self._transformed(), compiling():
            loss = loop.accumulate(
                self._trained,
                self._weights,
                sequences_of_step(self.data, parameters, self.step),
                batch=parameters.batch,
                device=self.device,
                dtype=parameters.dtype,
                ranks=self.ranks,
            )
        norm = loop.clipped(self._weights, parameters.clip)
        factor = parameters.schedule.factor(self.step, parameters.steps)
        learning_rate = optimizers.set_learning_rate(self._optimizers, parameters.optimizer, factor)
        if spectra is not None:
            spectra.before_step()
        for optimizer in self._optimizers:
            optimizer.step()
        self._installed.after_step()
        self.step = number
        self._unseen.append((number, loop.Taken(loss, norm)))
        looked_at = logged or last or self._is_looked_at(number)
        seen = self._see() if looked_at or self.device == "cpu" or len(self._unseen) >= _MOST_UNSEEN else None
        self._timed_s += time.perf_counter() - started
        self._timed_steps += 1
        if logged and seen is not None:
            self._log(sink, seen, learning_rate)

    def _see(self) -> tuple[float, float]:
        """Look at the losses since the last look, for divergence; returns those of the last step."""
        assert self._unseen
        loss = norm = 0.0
        for step, taken in self._unseen:
            loss, norm = float(taken.loss_nats), float(taken.gradient_norm)
            self._watch.see(step, loss, norm)
        self._unseen.clear()
        return loss, norm

    def _log(self, sink: Sink, seen: tuple[float, float], learning_rate: float) -> None:
        loss, norm = seen
        tokens_per_s = self._timed_steps * self.parameters.tokens_per_step / max(self._timed_s, 1e-9)
        self._timed_s, self._timed_steps = 0.0, 0
        numbers = {
            "loss_nats": loss,
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "tokens_per_s": tokens_per_s,
        }
        rows = [Metric(self.step, name, value) for name, value in numbers.items()]
        rows += [Metric(self.step, name, value, layer) for name, layer, value in self._installed.log()]
        sink.measured(rows, [])

    def _is_looked_at(self, step: int) -> bool:
        return due.is_validated(self.parameters, step) or bool(due.checkpoint_reasons(self.parameters, step))

    def _looked_at(self, sink: Sink, *, keep: bool = False) -> DueCheckpoint:
        """Validate and have a checkpoint stored, as far as they are due; with ``keep`` the caller stores it."""
        reasons = due.checkpoint_reasons(self.parameters, self.step)
        loss = None
        if due.is_validated(self.parameters, self.step):
            loss = self._validate(sink)
            if self._best_nats is None or loss < self._best_nats:
                self._best_nats = loss
                reasons.append("best")
        found = DueCheckpoint(self.step, tuple(reasons), loss)
        if reasons and not keep:
            sink.checkpoint(found)
        return found

    def _validate(self, sink: Sink) -> float:
        parameters, sequences = self.parameters, self.data.validation
        self.model.eval()
        where = {"batch": parameters.batch, "device": self.device, "dtype": parameters.dtype}
        loss = validation_loss_nats(self.model, sequences, **where, ranks=self.ranks)
        rows = [Metric(self.step, "validation_loss_nats", loss)]
        if self.data.validation_bytes:
            bits = bits_per_byte(loss, loop.predicted(sequences), self.data.validation_bytes)
            rows.append(Metric(self.step, "validation_bits_per_byte", bits))
        matrices: list[Matrix] = []
        if self.ranks.first:
            profiled = sequences[: parameters.validation.attention_sequences]
            routing = self._installed.definition.routing
            rows += attention_metrics(self.model, routing, profiled, step=self.step, **where)
        if self._spectra is not None:
            matrices = self._spectra.after_step(self.step)
        sink.measured(rows, matrices)
        return loss

    def _transformed(self) -> AbstractContextManager[None]:
        transform = self._installed.query_gradient
        return nullcontext() if transform is None else seam.observing(self.model, query_gradient=transform)

    def write_model(self, folder: Path, tokenizer: PreTrainedTokenizerFast | None) -> dict[str, Path]:
        """Write the files of the plain transformers model into a folder, by name."""
        config = self.config()
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._effective().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        written = {name: folder / name for name in ("config.json", "model.safetensors")}
        return written | ({} if tokenizer is None else tokenizer_files(tokenizer, folder))

    def _effective(self) -> dict[str, Any]:
        self.model.eval()
        return self._installed.effective_weights()

    def config(self) -> dict[str, Any]:
        """config.json of the model as trained so far."""
        own = {key: value for key, value in self.model.config.to_dict().items() if not key.startswith("_")}
        return {**own, "dtype": "float32", **self._installed.definition.stored()}

    def write_state(self, path: Path, surroundings: dict[str, Any]) -> None:
        """Write what ``resume`` goes on from; ``surroundings`` are stored along."""
        remembered = {
            "step": self.step,
            "best_nats": self._best_nats,
            "watch": self._watch.stored(),
            "surroundings": surroundings,
        }
        state.save(path, self.model, self._optimizers, remembered)

    def resume(self, path: Path) -> dict[str, Any]:
        """Go on from a stored state; returns the surroundings it was stored with."""
        remembered = state.load(path, self.model, self._optimizers)
        self.step, self._best_nats = remembered["step"], remembered["best_nats"]
        self._watch = Watch.restored(remembered["watch"])
        return remembered["surroundings"]
