"""Bodies of the runs API: trajectories of training, and what was measured of them by step."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel

RUN_STATES = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled", "imported")


class RunView(BaseModel):
    """A run in a listing."""

    id: int
    name: str
    origin: str  # trained or imported
    job_id: int | None
    state: str  # of its job, or imported
    phase: str | None
    variant: str | None
    seed: int | None
    steps: int | None
    steps_done: int
    model: str  # what it started from; of imported runs their series
    dataset: str | None
    optimizer: str | None
    learning_rate: float | None
    weight_decay: float | None
    sequences_per_step: int | None
    length: int | None
    last_validation_step: int | None
    last_validation_loss_nats: float | None
    best_validation_step: int | None
    best_validation_loss_nats: float | None
    last_validation_bits_per_byte: float | None
    submitted_by: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_s: float | None
    error_code: str | None
    error_message: str | None


class RunCheckpoint(BaseModel):
    """A checkpoint as its run lists it; its model source is ``checkpoint:ID``, or ``run:RUN@STEP``."""

    id: int
    step: int
    reasons: list[str]
    validation_loss_nats: float | None
    resumable: bool
    bytes: int
    created_at: datetime


class RunDetail(RunView):
    """One run with all that is known of it but its numbers by step."""

    parameters: dict[str, Any] | None
    metrics: list[str]  # names of the numbers that it has
    checkpoints: list[RunCheckpoint]


class RunPage(BaseModel):
    items: list[RunView]
    next: str | None  # cursor of the next page; none at the end
