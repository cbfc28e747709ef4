"""Bodies of the sweeps API: a training in several settings, with several variants and seeds, and what came of it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from services.contracts.printable import NAME_PATTERN
from services.contracts.states import JobState
from services.contracts.suites import MOST_STAGES, Stage
from services.contracts.training.sweep import Sweep


class SweepCreate(Sweep):
    """A submission: all members are made, or none. Its jobs are the first stage of a suite."""

    model: Annotated[str, Field(max_length=4096, description="config:NAME to train from scratch, or a model to tune")]
    dataset: Annotated[str, Field(max_length=4096, description="data set of all members")]
    name: Annotated[
        str | None, Field(max_length=200, pattern=NAME_PATTERN, description="a name of your own for the sweep")
    ] = None
    stages: Annotated[
        list[Stage], Field(max_length=MOST_STAGES, description="what follows once all members have ended, in turn")
    ] = Field(default=[])
    priority: Annotated[int, Field(ge=-100, le=100, description="higher runs first within the queue")] = 0
    time_limit_s: Annotated[int, Field(ge=1, le=30 * 86_400, description="a member fails after so long")] = 86_400
    force: Annotated[bool, Field(description="train even what the same job already trained")] = False


class SweepView(BaseModel):
    """A sweep in a listing."""

    id: int
    suite_id: int
    name: str
    created_at: datetime
    submitted_by: str | None
    model: str
    dataset: str
    runs: int
    deleted: int = 0  # of the runs, those whose jobs were deleted; they count as members still
    jobs_by_state: dict[JobState, int]

    @property
    def ended(self) -> bool:
        return all(state.terminal for state in self.jobs_by_state)


class SweepMember(BaseModel):
    """One training run of a sweep."""

    number: int
    job_id: int | None  # none if the job was deleted
    run_id: int | None
    variant: str
    setting: dict[str, Any]
    seed: int
    state: JobState | Literal["deleted"]
    stopped: str | None  # why it was given up early
    error_code: str | None
    steps: int | None  # none if the job was deleted
    steps_done: int | None
    final_validation_loss_nats: float | None  # at the last step, once it has succeeded
    best_validation_loss_nats: float | None  # the least so far
    best_step: int | None


class SweepSetting(BaseModel):
    """One setting of a variant over its seeds."""

    variant: str
    setting: dict[str, Any]
    seeds: int
    losses_nats: list[float]  # final validation losses of the seeds that finished
    mean_nats: float | None
    sd_nats: float | None


class SeedNoise(BaseModel):
    """Standard deviation of final losses between seeds, pooled over all settings with two or more."""

    sd_nats: float
    degrees_of_freedom: int


class SweepDifference(BaseModel):
    """Second variant's best setting minus first variant's best setting."""

    first: str
    second: str
    difference_nats: float
    standard_error_nats: float | None
    least_nats: float | None  # what |difference| must reach to count, two-sided 95 %
    verdict: Literal["differs", "within noise"]
    reason: str


class SweepLead(BaseModel):
    """By how much a variant's best setting is below its next one of as many finished seeds."""

    variant: str
    next_setting: dict[str, Any]
    lead_nats: float
    least_nats: float | None  # what it must reach to count, as for differences
    verdict: Literal["differs", "within noise"]


class SweepDetail(SweepView):
    parameters: dict[str, Any]  # as submitted: what all members share
    axes: dict[str, Any]
    early_stopping: dict[str, Any] | None
    members: list[SweepMember]
    settings: list[SweepSetting]
    lacking: str | None = None  # in words: settings of which fewer seeds finished than of others
    best: list[SweepSetting]  # of least mean; one for each variant with a finished member
    leads: list[SweepLead]  # how far they are ahead, of variants with a next setting
    noise: SeedNoise | None  # none if no setting has two finished seeds
    differences: list[SweepDifference]


class SweepPage(BaseModel):
    items: list[SweepView]
    next: str | None
