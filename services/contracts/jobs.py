"""Bodies of the jobs API: what is submitted, what is answered, and the problem document of every error."""

from datetime import datetime
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

from services.contracts.errors import ErrorCode
from services.contracts.kinds import KINDS
from services.contracts.parameters import JobParameters
from services.contracts.printable import NAME_PATTERN
from services.contracts.probes.common import ProbeParameters
from services.contracts.states import AttemptOutcome, JobState, Scope, ShardState


class JobCreateFields(BaseModel):
    """What every submission carries; each kind narrows ``kind`` and ``parameters`` to its own.

    Strict: ``true`` is no priority, ``"yes"`` does not force anything.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    parameters: JobParameters = ProbeParameters()
    model: Annotated[str, Field(description="model source, e.g. builtin:smollm2-135m-instruct", max_length=4096)]
    dataset: Annotated[str, Field(description="dataset source, e.g. builtin:python-docs", max_length=4096)]
    priority: Annotated[int, Field(ge=-100, le=100, description="higher runs first within the kind's queue")] = 0
    time_limit_s: Annotated[int, Field(ge=1, le=30 * 86_400, description="the job fails after so long")] = 86_400
    force: Annotated[bool, Field(description="compute even if the same job already succeeded")] = False
    label: Annotated[
        str | None, Field(max_length=200, pattern=NAME_PATTERN, description="a name of your own for the job")
    ] = None


def _job_create(kind: str) -> type[JobCreateFields]:
    parameters = KINDS[kind].parameters
    fields: dict[str, Any] = {"kind": (Literal[kind], ...), "parameters": (parameters, parameters())}
    return create_model(
        "Create" + "".join(part.title() for part in kind.split("_")), __base__=JobCreateFields, **fields
    )


JOB_CREATE = {kind: _job_create(kind) for kind in KINDS}
# a union over the kinds, told apart by the field ``kind``
JobCreate = Annotated[Union[tuple(JOB_CREATE.values())], Field(discriminator="kind")]  # noqa: UP007  # built at run time


class JobProgress(BaseModel):
    phase: str  # queued, loading model, reading data, measuring, summarizing, done; where it stopped if it failed
    shards: int
    shards_done: int
    rows: int
    rows_per_s: float | None = None
    remaining_s: float | None = None
    queue_position: int | None = None  # 1 is next; only while queued


class JobError(BaseModel):
    code: ErrorCode
    message: str
    hint: str = ""
    traceback: str | None = None


class JobView(BaseModel):
    """A job in a listing."""

    id: int
    kind: str
    state: JobState
    label: str | None
    model: str
    dataset: str
    parameters: dict[str, Any]
    priority: int
    time_limit_s: int
    version: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_s: float | None
    progress: JobProgress
    error: JobError | None
    submitted_by: str | None  # name of the token
    run_id: int | None = None  # of training jobs: the run that they make


class AttemptView(BaseModel):
    number: int
    worker: str
    device: str
    started_at: datetime
    heartbeat_at: datetime | None
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    detail: str | None


class ShardView(BaseModel):
    index: int
    state: ShardState
    first_sequence: int
    sequences: int
    rows: int | None
    started_at: datetime | None
    finished_at: datetime | None


class JobDetail(JobView):
    """One job with all that is known of it."""

    model_identity: str
    dataset_identity: str
    dataset_fingerprint: str | None
    model_architecture: dict[str, Any] | None
    environment: dict[str, Any] | None  # device, dtype, torch, transformers and Keyhole versions, host
    checks: dict[str, Any] | None  # parity of the seam and the probe's self-check
    attempts: list[AttemptView]
    sweeps: list[int] = []  # that it is a member of; deleted, it is missing in their results
    reused: bool = False  # the answer to a submission: true if the job stood already


class JobPage(BaseModel):
    items: list[JobView]
    next: str | None  # cursor of the next page; none at the end


class EventView(BaseModel):
    """One line of a job's history; ``id`` orders all events and is the SSE id."""

    id: int
    job_id: int
    at: datetime
    type: str
    data: dict[str, Any]


class SummaryRow(BaseModel):
    """Distribution of one metric; ``head`` None means all heads of the layer, ``layer`` None the whole model."""

    layer: int | None
    head: int | None
    metric: str
    n: int
    n_infinite: int
    n_undefined: int
    mean: float | None
    sd: float | None
    minimum: float | None
    q01: float | None
    q05: float | None
    q25: float | None
    median: float | None
    q75: float | None
    q95: float | None
    q99: float | None
    maximum: float | None
    histogram_low: float
    histogram_width: float
    histogram: list[int]

    @property
    def level(self) -> Literal["head", "layer", "job"]:
        """Whether the row speaks of one head, of all heads of a layer, or of the whole model."""
        if self.layer is None:
            return "job"
        return "layer" if self.head is None else "head"


class KindView(BaseModel):
    name: str
    queue: str
    version: int
    summary: str
    parameters_schema: dict[str, Any]  # JSON schema
    defaults: dict[str, Any]
    tables: list[str]
    metrics: list[str]


class TokenCreate(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w .@-]+$")]
    scope: Scope = Scope.SUBMIT
    expires_in_days: Annotated[int | None, Field(ge=1, le=3650, strict=True)] = None


class TokenView(BaseModel):
    id: int
    name: str
    scope: Scope
    prefix: str  # first characters, to recognise it
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class TokenCreated(TokenView):
    token: str  # shown this once


class SqlRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sql: Annotated[str, Field(min_length=1, max_length=100_000)]
    limit: Annotated[int | None, Field(ge=1, description="rows at most; the server's own limit holds besides")] = None


class Problem(BaseModel):
    """RFC 9457 problem details, the body of every error (media type application/problem+json)."""

    type: str  # about:blank#CODE
    title: str
    status: int
    detail: str
    code: ErrorCode
    request_id: str
    hint: str = ""
    errors: list[dict[str, Any]] = []  # for invalid requests: where and why
