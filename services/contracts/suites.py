"""Bodies of the suites API: several probes of one model, or of a series of models, submitted together."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.contracts.jobs import JobView
from services.contracts.printable import NAME_PATTERN
from services.contracts.states import JobState
from services.contracts.training.sweep import Sweep

PRESET_PATTERN = r"^[a-z0-9][a-z0-9_-]*/[a-z0-9][a-z0-9_-]*$"
MOST_MODELS = 500
MOST_JOBS = 2000
MOST_STAGES = 20


class SuiteItem(BaseModel):
    """One probe of a suite, or one training; its parameters are those of a job of the kind."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Annotated[str, Field(description="kind of job")]
    model: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="a model of its own, whatever the suite's models are"),
    ] = None
    dataset: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="a data set of its own, whatever the suite's is"),
    ] = None
    label: Annotated[
        str | None,
        Field(max_length=120, pattern=NAME_PATTERN, description="what tells its jobs from the others of the suite"),
    ] = None
    parameters: Annotated[
        dict[str, Any], Field(description="parameters of the kind; the others have their defaults")
    ] = {}


class Stage(BaseModel):
    """What a suite does next, once all jobs before have ended.

    A model may be a checkpoint of the suite's own training runs: ``runs`` is every checkpoint of every run,
    ``runs@last``, ``runs@best``, ``runs@first`` and ``runs@STEP`` one of each, in the order of the runs' jobs.
    ``best-runs`` in its place is only those runs of a sweep that have their variant's best setting.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    models: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4096)]],
        Field(min_length=1, max_length=MOST_MODELS, description="model sources, series of them, or runs of the suite"),
    ]
    dataset: Annotated[str | None, Field(max_length=4096, description="the suite's own if left out")] = None
    probes: Annotated[list[SuiteItem], Field(min_length=1, max_length=100)]
    on_failure: Annotated[
        Literal["skip", "continue"],
        Field(description="if a job before failed or was cancelled: skip the stage, or go on with what succeeded"),
    ] = "skip"


class SuiteCreate(BaseModel):
    """A submission: a preset or probes of one's own, on one model or several.

    A model source may name a series: hub revisions by a pattern (``hf:ORG/NAME@step*``), or the folders of a folder
    (``path:DIR/*``). Every probe is then a job for each model of it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    preset: Annotated[str | None, Field(pattern=PRESET_PATTERN, max_length=100, description="name of a preset")] = None
    probes: Annotated[list[SuiteItem], Field(max_length=100, description="probes of one's own")] = []
    stages: Annotated[
        list[Stage], Field(max_length=MOST_STAGES, description="what follows once the probes' jobs have ended, in turn")
    ] = []
    models: Annotated[
        list[Annotated[str, Field(max_length=4096)]],
        Field(max_length=MOST_MODELS, description="model sources, or series of them; the preset's own if left out"),
    ] = []
    dataset: Annotated[str | None, Field(max_length=4096, description="the preset's own if left out")] = None
    parameters: Annotated[
        dict[str, Any],
        Field(
            description="values for every probe that has the parameter, such as {'length': 256}; below the name of a "
            "kind, for that kind alone"
        ),
    ] = {}
    name: Annotated[
        str | None, Field(max_length=200, pattern=NAME_PATTERN, description="a name of your own for the suite")
    ] = None
    priority: Annotated[int, Field(ge=-100, le=100, description="higher runs first within the kind's queue")] = 0
    time_limit_s: Annotated[int, Field(ge=1, le=30 * 86_400, description="a job fails after so long")] = 86_400
    force: Annotated[bool, Field(description="compute even what the same job already computed")] = False

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if (self.preset is None) == (not self.probes):
            raise ValueError(
                "give either a preset or a list of probes (--preset or --probe); `keyhole presets`, or "
                "GET /v1/presets, lists the presets"
            )
        if self.preset is not None and self.stages:
            raise ValueError("a preset has stages of its own; give stages with probes of your own")
        return self


class SuiteJob(JobView):
    reused: bool  # whether the job stood already when it became part of the suite
    stage: int = 0  # in which it was submitted
    stopped: str | None = None  # of a member of a sweep: why its setting was given up early, which is no failure

    @property
    def fell_short(self) -> bool:
        """Whether it ended in another way than it was asked for."""
        return self.state.terminal and self.state is not JobState.SUCCEEDED and self.stopped is None


class StageState(StrEnum):
    WAITING = "waiting"  # for the jobs before it to end; `detail` tells if something else keeps it
    SUBMITTED = "submitted"  # its jobs are part of the suite
    SKIPPED = "skipped"  # `detail` tells why


class StageView(BaseModel):
    """A later stage; its number is its place after the first, which is 0 and submitted at once."""

    number: int
    state: StageState
    detail: str | None
    submitted_at: datetime | None
    models: list[str]
    kinds: list[str]


class SuiteView(BaseModel):
    """A suite in a listing."""

    id: int
    name: str
    created_at: datetime
    submitted_by: str | None
    models: int
    jobs_by_state: dict[JobState, int]
    shards: int
    shards_done: int
    stages_waiting: int = 0
    sweep_id: int | None = None  # if its first stage is a sweep

    @property
    def jobs(self) -> int:
        return sum(self.jobs_by_state.values())

    @property
    def ended(self) -> bool:
        return not self.stages_waiting and all(state.terminal for state in self.jobs_by_state)


class SuiteDetail(SuiteView):
    members: list[SuiteJob]
    stages: list[StageView] = []

    @property
    def skipped(self) -> list[StageView]:
        return [stage for stage in self.stages if stage.state is StageState.SKIPPED]


class SuitePage(BaseModel):
    items: list[SuiteView]
    next: str | None  # cursor of the next page; none at the end


class Preset(BaseModel):
    """A named set of probes with their settings, a file below ``presets/``."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=PRESET_PATTERN)]
    title: str
    about: str
    also: list[Annotated[str, Field(pattern=PRESET_PATTERN)]] = []  # other names of the same
    models: list[str]
    dataset: str
    probes: list[SuiteItem] = []
    sweep: Sweep | None = None  # of training, in place of probes; `models` is then one
    stages: list[Stage] = []

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if (self.sweep is None) == (not self.probes):
            raise ValueError("a preset has either probes or a sweep")
        return self


def merged(parameters: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the changes in them, objects within objects too."""
    result = dict(parameters)
    for name, value in changes.items():
        known = result.get(name)
        result[name] = merged(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return result
