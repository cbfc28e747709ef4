"""Bodies of the checkpoints API: models at steps of runs, and runs that are imported."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from services.contracts.attention_definition import CONFIG_KEY
from services.contracts.printable import NAME_PATTERN
from services.contracts.runs import RunDetail
from services.contracts.suites import MOST_MODELS

REASONS = ("first", "interval", "log", "asked", "best", "last", "resume", "imported")
_PASSING = frozenset({"resume"})


def is_passing(reasons: Iterable[str]) -> bool:
    """Whether a checkpoint is kept for resuming alone: it is gone with the next one, so no series has it."""
    return _PASSING.issuperset(reasons)


class CheckpointView(BaseModel):
    """A checkpoint in a listing. Its model source is ``checkpoint:ID``, or ``run:RUN@STEP``."""

    id: int
    run_id: int
    run: str  # name of the run
    variant: str | None
    job_id: int | None  # that trained it
    step: int
    reasons: list[str]
    model_type: str
    validation_loss_nats: float | None
    identity: str
    source: str | None  # where the files of an imported one lie
    resumable: bool
    bytes: int  # of its files, what they share with others counted in full
    created_at: datetime


class CheckpointFile(BaseModel):
    name: str
    bytes: int
    sha256: str  # also the ETag of the file


class CheckpointDetail(CheckpointView):
    """A checkpoint with its configuration and its files; those of an imported one are elsewhere."""

    config: dict[str, Any]  # config.json
    files: list[CheckpointFile]

    @property
    def attention(self) -> dict[str, Any] | None:
        """What its attention does that its architecture does not say; see AttentionDefinition."""
        return self.config.get(CONFIG_KEY)


class CheckpointPage(BaseModel):
    items: list[CheckpointView]
    next: str | None  # cursor of the next page; none at the end


class CheckpointVerified(BaseModel):
    """All bytes of a checkpoint were read and are those that were stored."""

    id: int
    files: int
    bytes: int


class RunImport(BaseModel):
    """Models that exist already, as the checkpoints of one run; their files stay where they are."""

    model_config = ConfigDict(extra="forbid", strict=True)

    models: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4096)]],
        Field(
            min_length=1,
            max_length=MOST_MODELS,
            description="path:DIR/*, hf:ORG/NAME@PATTERN, or single models of these forms; numbers in the names of "
            "folders and revisions are the steps",
        ),
    ]
    name: Annotated[str | None, Field(min_length=1, max_length=200, pattern=NAME_PATTERN, description="of the run")] = (
        None
    )


class ImportedRun(RunDetail):
    note: str = (
        "The files of imported checkpoints stay where they are and are read from there: workers must see them, and a "
        "model that changes is refused."
    )
