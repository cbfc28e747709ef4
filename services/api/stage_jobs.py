"""From a planned stage of a suite to its jobs: sources resolved, parameters checked, nothing stored."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from db.repositories import jobs
from services.api import resolving, training_sources
from services.api.submission import new_job
from services.api.suite_plan import PlannedStage
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import JOB_CREATE, JobCreateFields
from services.contracts.kinds import KINDS
from services.contracts.settings import Settings
from services.contracts.suites import MOST_JOBS, SuiteItem
from services.contracts.training.training import TrainingParameters
from services.sources import ResolvedModel
from services.sources.series import is_series


async def jobs_of(
    turns: resolving.Turns, name: str, stage: PlannedStage, *, token_id: int | None, settings: Settings
) -> list[jobs.NewJob]:
    """The stage's jobs in the order of its probes, then models; holds no connection.

    Raises: RequestValidationError, KeyholeError as a job's submission does.
    """
    named = [source for item in stage.probes for source in _named(stage, item)]
    sources = [item.dataset or stage.dataset for item in stage.probes]
    found, datasets = await resolving.resolve_all(turns, [*stage.models, *named], sources, settings)
    models: dict[str, ResolvedModel] = {}
    for source in stage.models:
        models |= {model.label or each: model for each, model in found[source].items()}
    resolved = models | {each: model for series in found.values() for each, model in series.items()}
    bodies = [each for item in stage.probes for each in _jobs_of(name, stage, item, models, resolved)]
    beside = await training_sources.resolve(turns, [made.parameters for made, _ in bodies], settings)
    every = [
        new_job(made, of_job, datasets[made.dataset], beside, token_id=token_id, settings=settings)
        for made, of_job in bodies
    ]
    if len(every) > MOST_JOBS:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{len(models)} models and {len(stage.probes)} probes make {len(every)} jobs; a suite takes {MOST_JOBS}.",
            "Narrow the series of models, or submit the probes in several suites.",
        )
    return every


def check(name: str, stage: PlannedStage, model: str) -> None:
    """Raise what is wrong with a stage's probes on whatever models it will have; ``model`` stands for them."""
    for item in stage.probes:
        if item.model is not None or _compared(item, [model, model]) is None:
            _named(stage.model_copy(update={"models": [model]}), item)
        else:
            _body(name, stage, item, item.model or model)


def _compared(item: SuiteItem, sources: Sequence[str]) -> dict[str, Any] | None:
    """Parameters by which one job of the kind compares the models, unless the probe says itself what to compare."""
    parameters = KINDS[item.kind].parameters.over_series(sources)
    return None if parameters is None or item.parameters.keys() & parameters.keys() else parameters


def _named(stage: PlannedStage, item: SuiteItem) -> list[str]:
    """Models that the probe itself names; raises KeyholeError (invalid_source) for a series among them."""
    named = [item.model] if item.model else []
    models = stage.models or named
    if _compared(item, models) is None:
        named += _body("", stage, item, item.model or models[0]).parameters.other_models()
    for source in named:
        if is_series(source):
            raise KeyholeError(
                ErrorCode.INVALID_SOURCE,
                f"{source!r} names a series of models where {item.kind} takes one.",
                "Give the series as the suite's model, or name one model of it.",
            )
    return named


def _jobs_of(
    name: str,
    stage: PlannedStage,
    item: SuiteItem,
    models: Mapping[str, ResolvedModel],
    resolved: Mapping[str, ResolvedModel],
) -> Iterator[tuple[JobCreateFields, list[ResolvedModel]]]:
    """The jobs of one probe, each with its models resolved: one for every model, or one that compares them all."""
    if item.model:
        models = {item.model: resolved[item.model]}
    compared = _compared(item, list(models)) if len(models) > 1 else None
    if compared is not None:
        item = item.model_copy(update={"parameters": item.parameters | compared})
        models = dict([next(iter(models.items()))])
    for source, model in models.items():
        made = _body(name, stage, item, source)
        told = _told(item, made, source if len(models) > 1 or item.model else None)
        if told:
            made.label = f"{name[: 197 - len(told)]} · {told}"
        yield made, [model, *(resolved[other] for other in made.parameters.other_models())]


def _told(item: SuiteItem, made: JobCreateFields, source: str | None) -> str:
    """What tells a job from the others of its suite: a name of its own, of a training its variant and seed, the model.

    The model by the end of its source, a revision's name: the job itself has its commit.
    """
    parts = [item.label] if item.label else []
    if isinstance(made.parameters, TrainingParameters):
        parts = [item.label or made.parameters.variant, f"seed {made.parameters.seed}"]
    if source is not None and (not item.model or (parts and not item.label)):
        parts.append(source[-77:])
    return ", ".join(parts)[:197]


def _body(name: str, stage: PlannedStage, item: SuiteItem, model: str) -> JobCreateFields:
    """The submission of one job; raises RequestValidationError that says which probe is wrong."""
    fields = {
        "kind": item.kind,
        "parameters": item.parameters,
        "model": model,
        "dataset": item.dataset or stage.dataset,
        "priority": stage.priority,
        "time_limit_s": stage.time_limit_s,
        "label": name or None,
    }
    try:
        return JOB_CREATE[item.kind].model_validate(fields)
    except ValidationError as error:
        where = ("body", "probes", item.kind, *([item.label] if item.label else []))
        raise RequestValidationError(
            [{**each, "loc": (*where, *each["loc"])} for each in error.errors(include_url=False)]
        ) from error
