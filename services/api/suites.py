"""From the submission of a suite to its jobs: all of them, or none if anything about one is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from psycopg import Connection
from psycopg_pool import ConnectionPool
from pydantic import ValidationError

from db.repositories import jobs, suites
from services.api import enqueue, resolving
from services.api.submission import new_job
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import JOB_CREATE, JobCreateFields
from services.contracts.kinds import KINDS, kind_named
from services.contracts.settings import Settings
from services.contracts.suites import MOST_JOBS, SuiteCreate, SuiteItem, merged
from services.presets import preset_named
from services.sources import ResolvedModel
from services.sources.series import is_series


@dataclass(frozen=True)
class Plan:
    """A suite with nothing left out."""

    name: str
    models: Sequence[str]
    dataset: str
    probes: Sequence[SuiteItem]


@dataclass(frozen=True)
class Prepared:
    """A suite whose sources are resolved and whose jobs are made, not stored yet."""

    name: str
    token_id: int
    news: Sequence[jobs.NewJob]
    force: bool


@dataclass(frozen=True)
class Inserted:
    suite_id: int
    fresh: Sequence[tuple[str, int]]  # queue and number of each job that is new, to be announced after the commit


async def submit(
    pool: ConnectionPool[Connection[Any]],
    turns: resolving.Turns,
    body: SuiteCreate,
    *,
    token_id: int,
    settings: Settings,
) -> int:
    """Make the suite and those of its jobs that do not stand already; returns its number.

    Raises: RequestValidationError, KeyholeError as a job's submission does.
    """
    ready = await prepared(turns, body, token_id=token_id, settings=settings)
    inserted = await run_in_threadpool(_store, pool, ready)
    await run_in_threadpool(announce, settings, inserted)
    return inserted.suite_id


async def prepared(turns: resolving.Turns, body: SuiteCreate, *, token_id: int, settings: Settings) -> Prepared:
    """The suite with its sources resolved; holds no connection. Raises as ``submit`` does."""
    planned = plan(body)
    named = [source for item in planned.probes for source in _named(body, planned, item)]
    found, dataset = await resolving.resolve_all(turns, [*planned.models, *named], planned.dataset, settings)
    models: dict[str, ResolvedModel] = {}
    for source in planned.models:
        models |= found[source]
    resolved = {each: model for series in found.values() for each, model in series.items()}
    every = (
        new_job(made, of_job, dataset, token_id=token_id, settings=settings)
        for item in planned.probes
        for made, of_job in _jobs_of(body, planned, item, models, resolved)
    )
    news = list({new.reuse_key: new for new in every}.values())  # one model under two names is one job
    if len(news) > MOST_JOBS:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{len(models)} models and {len(planned.probes)} probes make {len(news)} jobs; a suite takes {MOST_JOBS}.",
            "Narrow the series of models, or submit the probes in several suites.",
        )
    return Prepared(planned.name, token_id, news, body.force)


def announce(settings: Settings, inserted: Inserted) -> None:
    """Tell the workers of the suite's new jobs, once they are committed."""
    for queue, job_id in inserted.fresh:
        enqueue.announce(settings, queue, job_id)


def plan(body: SuiteCreate) -> Plan:
    """The preset, if any, with what the submission changes; raises KeyholeError (not_found, invalid_request)."""
    if body.preset is not None:
        preset = preset_named(body.preset)
        models, dataset, probes = body.models or preset.models, body.dataset or preset.dataset, preset.probes
    else:
        models, dataset, probes = body.models, body.dataset, body.probes
    if not models or dataset is None:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "A suite of your own needs models and a dataset.",
            "Give `models`, a list of sources, and `dataset`; only presets have their own.",
        )
    changed = [_changed(item, body.parameters) for item in probes]
    _refuse_useless(body.parameters, changed)
    name = body.name or body.preset or ", ".join(dict.fromkeys(item.kind for item in probes))
    return Plan(name[:200], models, dataset, changed)


def _changed(item: SuiteItem, changes: dict[str, Any]) -> SuiteItem:
    """The probe with the values meant for it: those for all that have the parameter, then those for its kind."""
    fields = kind_named(item.kind).parameters.model_fields
    general = {name: value for name, value in changes.items() if name in fields}
    own = changes.get(item.kind, {})
    if not isinstance(own, dict):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"parameters.{item.kind} is {own!r}.",
            f"Below the name of a kind stand its parameters, such as {item.kind}.length.",
        )
    return item.model_copy(update={"parameters": merged(merged(item.parameters, general), own)})


def _refuse_useless(changes: dict[str, Any], probes: Sequence[SuiteItem]) -> None:
    kinds = {item.kind for item in probes}
    known = {name for kind in kinds for name in KINDS[kind].parameters.model_fields}
    for name in changes:
        if name not in kinds | known:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"No probe of the suite has a parameter {name!r}.",
                f"Probes: {', '.join(sorted(kinds))}. Parameters: {', '.join(sorted(known))}.",
            )


def _compared(item: SuiteItem, sources: Sequence[str]) -> dict[str, Any] | None:
    """Parameters by which one job of the kind compares the models, unless the probe says itself what to compare."""
    parameters = KINDS[item.kind].parameters.over_series(sources)
    return None if parameters is None or item.parameters.keys() & parameters.keys() else parameters


def _named(body: SuiteCreate, planned: Plan, item: SuiteItem) -> list[str]:
    """Models that the probe itself names; raises KeyholeError (invalid_source) for a series among them."""
    named = [item.model] if item.model else []
    if _compared(item, planned.models) is None:
        named += _body(body, planned, item, planned.models[0]).parameters.other_models()
    for source in named:
        if is_series(source):
            raise KeyholeError(
                ErrorCode.INVALID_SOURCE,
                f"{source!r} names a series of models where {item.kind} takes one.",
                "Give the series as the suite's model, or name one model of it.",
            )
    return named


def _jobs_of(
    body: SuiteCreate,
    planned: Plan,
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
        made = _body(body, planned, item, source)
        if len(models) > 1:
            made.label = f"{planned.name[:120]} · {source[-77:]}"  # a revision's name: the job itself has its commit
        yield made, [model, *(resolved[other] for other in made.parameters.other_models())]


def _body(body: SuiteCreate, planned: Plan, item: SuiteItem, model: str) -> JobCreateFields:
    """The submission of one job; raises RequestValidationError that says which probe is wrong."""
    fields = {
        "kind": item.kind,
        "parameters": item.parameters,
        "model": model,
        "dataset": planned.dataset,
        "priority": body.priority,
        "time_limit_s": body.time_limit_s,
        "label": planned.name,
    }
    try:
        return JOB_CREATE[item.kind].model_validate(fields)
    except ValidationError as error:
        where = ("body", "probes", item.kind)
        raise RequestValidationError(
            [{**each, "loc": (*where, *each["loc"])} for each in error.errors(include_url=False)]
        ) from error


def _store(pool: ConnectionPool[Connection[Any]], ready: Prepared) -> Inserted:
    with pool.connection() as conn, conn.transaction():
        return insert(conn, ready)


def insert(conn: Connection[Any], ready: Prepared) -> Inserted:
    """Insert the suite with its jobs, or those that answer for them; call inside a transaction."""
    fresh = []
    suite_id = suites.insert(conn, ready.name, ready.token_id)
    for key in sorted(
        {new.reuse_key for new in ready.news}
    ):  # in one order, so that two suites cannot block each other
        jobs.lock_reuse_key(conn, key)
    for position, new in enumerate(ready.news):
        found = None if ready.force else jobs.reusable(conn, new.reuse_key)
        job_id = jobs.insert(conn, new) if found is None else found
        suites.add(conn, suite_id, position, job_id, reused=found is not None)
        if found is None:
            fresh.append((new.queue, job_id))
    return Inserted(suite_id, fresh)
