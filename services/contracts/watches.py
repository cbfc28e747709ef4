"""Bodies of the watches API: probes of every new checkpoint of a target, rules on what comes back, and alerts."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from services.contracts.printable import NAME_PATTERN
from services.contracts.rule_texts import parse
from services.contracts.rules import TRAINING, Rule
from services.contracts.sources import parse_model_source
from services.contracts.suites import PRESET_PATTERN, SuiteItem

TARGET_FORMS = "run:ID, suite:ID, sweep:ID, path:DIR/*, hf:ORG/NAME@PATTERN or hf:ORG/NAME@BRANCH"
MOST_RULES = 50
_NUMBERED = re.compile(r"(run|suite|sweep):([1-9][0-9]{0,8})")

TargetForm = Literal["run", "suite", "sweep", "path", "hf"]


class Target(BaseModel):
    """What is watched: runs, by the number of one or of what holds them; or a series of models, by its source."""

    model_config = ConfigDict(frozen=True)

    form: TargetForm
    number: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.form}:{self.number}" if self.source is None else self.source

    @property
    def of_runs(self) -> bool:
        return self.source is None


def parse_target(text: str) -> Target:
    """Read a target; raises ValueError that lists the forms, KeyholeError (invalid_source) for a bad repository."""
    given = text.strip()
    if numbered := _NUMBERED.fullmatch(given):
        return Target(form=numbered[1], number=int(numbered[2]))  # type: ignore[arg-type]  # one of the pattern's
    form, _, rest = given.partition(":")
    if form == "path" and rest.endswith("/*"):
        return Target(form="path", source=given)
    name, _, revisions = rest.partition("@")
    if form == "hf" and name and revisions:
        parse_model_source(f"hf:{name}")
        return Target(form="hf", source=given)
    raise ValueError(f"{text[:200]!r} cannot be watched; targets read {TARGET_FORMS}")


def _rule_of_text(value: Any) -> Any:
    """A rule may be given as text, or as an object, whose type is metric unless it says otherwise."""
    if isinstance(value, str):
        return parse(value)
    return {"type": "metric", **value} if isinstance(value, dict) and "type" not in value else value


class WatchCreate(BaseModel):
    """A watch: where to look, what to measure there, and what to tell.

    ``probes`` or a ``preset`` are submitted as a suite for every checkpoint; without them, only rules on numbers of the
    training can be met. Each rule is an object, or a text such as ``entropy_nats head below 0.5``.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    target: Annotated[str, Field(max_length=4096, description=TARGET_FORMS)]
    rules: Annotated[
        list[Annotated[Rule, BeforeValidator(_rule_of_text)]],
        Field(max_length=MOST_RULES, description="what raises an alert"),
    ] = []
    name: Annotated[str | None, Field(max_length=200, pattern=NAME_PATTERN, description="a name of your own")] = None
    preset: Annotated[str | None, Field(pattern=PRESET_PATTERN, max_length=100, description="name of a preset")] = None
    probes: Annotated[list[SuiteItem], Field(max_length=100, description="probes of one's own")] = []
    dataset: Annotated[
        str | None,
        Field(max_length=4096, description="what the probes measure on; the preset's, or the run's own if left out"),
    ] = None
    parameters: Annotated[
        dict[str, Any],
        Field(description="values for every probe that has the parameter; below the name of a kind, for that alone"),
    ] = {}
    priority: Annotated[int, Field(ge=-100, le=100, description="of the jobs: higher runs first")] = 0
    time_limit_s: Annotated[int, Field(ge=1, le=30 * 86_400, description="a job fails after so long")] = 86_400
    existing: Annotated[bool, Field(description="probe the checkpoints that are there already, too")] = True
    poll_s: Annotated[
        float, Field(ge=1, le=86_400, description="how often a folder or a repository on the hub is looked at")
    ] = 60.0
    until: Annotated[
        datetime | None,
        Field(strict=False, description="no new checkpoints after this time; a watch of runs ends with them anyway"),
    ] = None
    webhook: Annotated[
        str | None, Field(max_length=2000, description="alerts are posted there; its host must be allowed")
    ] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        target = parse_target(self.target)
        if self.preset is not None and self.probes:
            raise ValueError("give either a preset or probes")
        measures = self.preset is not None or bool(self.probes)
        if not measures and not self.rules:
            raise ValueError("a watch needs probes or a preset, rules on numbers of the training, or both")
        if not measures and not target.of_runs:
            raise ValueError(f"{target} needs probes or a preset: only runs have numbers of their training")
        kinds = {item.kind for item in self.probes}
        for number, rule in enumerate(self.rules):
            origin = rule.origin()
            if origin == TRAINING and not target.of_runs:
                raise ValueError(f"rule {number} is on numbers of the training, which {target} has not; watch a run")
            if origin not in (None, TRAINING) and self.preset is None and origin not in kinds:
                raise ValueError(f"rule {number} needs the probe {origin}, which the watch has not")
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until needs a time zone, such as 2026-12-31T18:00:00Z")
        if self.webhook is not None:
            parts = urlsplit(self.webhook)
            _ = parts.port  # raises ValueError for what is no port
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
                raise ValueError("webhook reads https://HOST/…, without name and password")
        return self


class RuleView(BaseModel):
    text: str
    rule: dict[str, Any]
    alerts: int  # raised so far
    met_at: int  # places (heads, layers, matrices) where it is met now


class WatchedModel(BaseModel):
    """A checkpoint that a watch has seen."""

    source: str
    run_id: int | None
    step: int | None
    suite_id: int | None
    judged: bool
    problem: str | None
    seen_at: datetime


class WatchView(BaseModel):
    """A watch in a listing."""

    id: int
    name: str
    target: str
    active: bool
    ended: str | None  # why it no longer looks
    problem: str | None  # what kept it from looking the last time
    probes: list[str]  # kinds
    dataset: str | None
    rules: list[RuleView]
    models: int  # checkpoints seen
    models_judged: int  # of which nothing more is waited for
    models_failed: int  # some of whose probes brought nothing
    alerts: int
    unacknowledged: int
    webhook_host: str | None
    poll_s: float | None
    submitted_by: str | None
    created_at: datetime
    looked_at: datetime | None


class WatchDetail(WatchView):
    body: dict[str, Any]  # as submitted, but for the webhook, which may hold a secret
    newest: list[WatchedModel]


class WatchPage(BaseModel):
    items: list[WatchView]
    next: str | None


class AlertView(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    id: int
    watch_id: int
    watch: str
    rule: int
    rule_text: str
    message: str
    metric: str
    run_id: int | None
    job_id: int | None
    source: str | None
    step: int | None
    matrix: str | None
    layer: int | None
    head: int | None
    value: float
    threshold: float
    others: int
    created_at: datetime
    delivered_at: datetime | None
    delivery_problem: str | None
    deliveries: int
    acknowledged_at: datetime | None
    acknowledged_by: str | None


class AlertPage(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    items: list[AlertView]
    next: str | None


class WebhookWatch(BaseModel):
    id: int
    name: str
    target: str


class WebhookBody(BaseModel):
    """What is posted to a webhook."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    watch: WebhookWatch
    text: str  # the alerts in words, which chat services show
    alerts: list[AlertView]


class Acknowledgement(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    alerts: Annotated[list[int], Field(max_length=1000, description="numbers of alerts")] = []
    watch: Annotated[int | None, Field(ge=1, le=2**31 - 1, description="all alerts of this watch so far")] = None


class Acknowledged(BaseModel):
    acknowledged: int


class WatchableMetric(BaseModel):
    of: str  # the probe, or training
    metric: str
    levels: list[str]
    meaning: str


class RuleGuide(BaseModel):
    """What rules can be about, and how they are written."""

    grammar: str
    statistics: list[str]
    metrics: list[WatchableMetric]
