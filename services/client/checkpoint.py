"""``Checkpoint``: a model at one step of a run, from Python."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from services.client import checkpoint_export
from services.client.connection import Connection
from services.client.local_paths import absolute_source
from services.client.pages import items
from services.contracts.checkpoints import (
    CheckpointDetail,
    CheckpointPage,
    CheckpointVerified,
    CheckpointView,
    ImportedRun,
)
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.runs import RunCheckpoint, RunDetail
from services.contracts.sources import ModelSource, parse_model_source


class Checkpoint:
    """One checkpoint, as it was when asked for. ``source`` names it as the model of a job."""

    def __init__(self, connection: Connection, detail: CheckpointDetail) -> None:
        self._connection = connection
        self.detail = detail

    @property
    def id(self) -> int:
        return self.detail.id

    @property
    def source(self) -> str:
        return f"checkpoint:{self.id}"

    def __repr__(self) -> str:
        detail = self.detail
        loss = "" if detail.validation_loss_nats is None else f", {detail.validation_loss_nats:.4f} nats"
        return f"<Checkpoint {self.id} of run {detail.run_id}, step {detail.step}{loss}>"

    def export(
        self, folder: str | Path, *, resume_state: bool = False, say: Callable[[str], None] = lambda _: None
    ) -> Path:
        """Write a folder that ``AutoModelForCausalLM.from_pretrained`` loads, and return it.

        The folder appears when it is whole; called again after a break, it goes on with the files that are missing.
        ``resume_state`` adds the optimizer's state, if it is stored. ``say`` is told of waiting for another export to
        the same folder. Raises KeyholeError: conflict (the folder holds something else), invalid_source (an imported
        one lies elsewhere), checkpoint_damaged.
        """
        return checkpoint_export.export(self._connection, self.detail, Path(folder), resume_state=resume_state, say=say)

    def verify(self) -> CheckpointVerified:
        """Have the API read all of its bytes; raises KeyholeError (checkpoint_damaged) that names file and piece."""
        return checkpoint_export.verify(self._connection, self.id)

    def delete(self) -> None:
        """Delete it (scope admin); raises KeyholeError (conflict) while an open job needs it."""
        self._connection.request("DELETE", f"/v1/checkpoints/{self.id}")


class CheckpointCalls:
    """What ``Keyhole`` asks about checkpoints, and the import of runs."""

    _connection: Connection

    def checkpoint(self, which: int | str) -> Checkpoint:
        """A checkpoint by its number, or by a source: ``checkpoint:7``, ``run:5@1000``, ``run:5@best``."""
        number = which if isinstance(which, int) else self._number(which)
        answer = self._connection.request("GET", f"/v1/checkpoints/{number}")
        return Checkpoint(self._connection, CheckpointDetail.model_validate_json(answer.content))

    def checkpoints(
        self,
        *,
        run: int | None = None,
        min_step: int | None = None,
        max_step: int | None = None,
        reason: str | None = None,
        model_type: str | None = None,
        variant: str | None = None,
        min_loss: float | None = None,
        max_loss: float | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointView]:
        """Checkpoints that match, newest first, fetched page by page; losses are of validation, in nats."""
        filters = {
            "run": run,
            "min_step": min_step,
            "max_step": max_step,
            "reason": reason,
            "model_type": model_type,
            "variant": variant,
            "min_loss": min_loss,
            "max_loss": max_loss,
        }
        return items(self._connection, "/v1/checkpoints", CheckpointPage, filters, limit)

    def import_run(self, models: str | Sequence[str], *, name: str | None = None) -> ImportedRun:
        """Make a run of models that exist: ``path:DIR/*``, ``hf:ORG/NAME@PATTERN``, or single ones; by step.

        Their files stay where they are.
        """
        named = [models] if isinstance(models, str) else list(models)
        body = {"models": [absolute_source(each) for each in named], "name": name}
        answer = self._connection.request("POST", "/v1/runs", json=body, timeout=600.0)  # a hub, many revisions
        return ImportedRun.model_validate_json(answer.content)

    def _number(self, text: str) -> int:
        if text.isascii() and text.isdigit():
            return int(text)
        source = parse_model_source(text)
        if source.form == "checkpoint":
            return int(source.name)
        if source.form != "run" or source.revision is None:
            raise KeyholeError(
                ErrorCode.INVALID_SOURCE,
                f"{text!r} names no checkpoint.",
                "Give its number, or a source such as checkpoint:7, run:5@1000 or run:5@best.",
            )
        answer = self._connection.request("GET", f"/v1/runs/{source.name}")
        run = RunDetail.model_validate_json(answer.content)
        found = _at(run.checkpoints, source.revision)
        if found is None:
            raise _missing(source, run)
        return found.id


def _at(checkpoints: Sequence[RunCheckpoint], place: str | Literal["first", "last", "best"]) -> RunCheckpoint | None:
    by_step = sorted(checkpoints, key=lambda each: each.step)
    if place == "best":
        measured = [each for each in by_step if each.validation_loss_nats is not None]
        return min(measured, key=lambda each: each.validation_loss_nats or 0.0, default=None)
    if place in ("first", "last"):
        return None if not by_step else by_step[0 if place == "first" else -1]
    return next((each for each in by_step if each.step == int(place)), None)


def _missing(source: ModelSource, run: RunDetail) -> KeyholeError:
    return KeyholeError(
        ErrorCode.NOT_FOUND,
        f"Run {run.id} has no checkpoint at {source.revision}.",
        f"Its checkpoints: keyhole checkpoints --run {run.id}",
    )
