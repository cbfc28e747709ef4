"""From the submission of a suite, or of a sweep, to its jobs: all of them, or none if anything about one is wrong."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import jobs, suite_stages, suites, sweeps
from services.api import enqueue, resolving, stage_jobs, suite_runs
from services.api.suite_plan import Plan, PlannedStage, PlannedSweep, plan
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.suites import SuiteCreate
from services.contracts.training.sweep import EarlyStopping
from services.contracts.training.training import TrainingParameters


@dataclass(frozen=True)
class Prepared:
    """A suite whose sources are resolved and whose first stage's jobs are made, not stored yet."""

    name: str
    token_id: int
    news: Sequence[jobs.NewJob]
    force: bool
    later: Sequence[PlannedStage] = ()
    sweep: PlannedSweep | None = None  # its members are the jobs, in their order
    sweep_sources: tuple[str, str] = ("", "")  # model and data set of a sweep, as submitted


@dataclass(frozen=True)
class Inserted:
    suite_id: int
    fresh: Sequence[tuple[str, int]]  # queue and number of each job that is new, to be announced after the commit
    sweep_id: int | None = None


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
    return await prepared_plan(turns, plan(body), token_id=token_id, settings=settings)


async def prepared_plan(turns: resolving.Turns, planned: Plan, *, token_id: int, settings: Settings) -> Prepared:
    """The same of a plan. What is wrong with a later stage is told now, not when its turn comes."""
    first, *later = planned.stages
    suite_runs.refuse_without_runs(planned)
    await _check_later(turns, planned.name, later, settings)
    news = await stage_jobs.jobs_of(turns, planned.name, first, token_id=token_id, settings=settings)
    if planned.sweep is None:
        return Prepared(planned.name, token_id, without_repetitions(news), first.force, later)
    _refuse_equal_members(planned.sweep, news)
    if planned.sweep.body.early_stopping is not None:
        _refuse_steps_without_validation(planned.sweep.body.early_stopping, news)
    sources = (first.models[0], first.dataset)
    return Prepared(planned.name, token_id, news, first.force, later, planned.sweep, sources)


def without_repetitions(news: Iterable[jobs.NewJob]) -> list[jobs.NewJob]:
    """Each job once: one model under two names is one job."""
    return list({new.reuse_key: new for new in news}.values())


def announce(settings: Settings, inserted: Inserted) -> None:
    """Tell the workers of the suite's new jobs, once they are committed."""
    for queue, job_id in inserted.fresh:
        enqueue.announce(settings, queue, job_id)


def insert(conn: Connection[Any], ready: Prepared) -> Inserted:
    """Insert the suite with its jobs, or those that answer for them; call inside a transaction."""
    suite_id = suites.insert(conn, ready.name, ready.token_id)
    job_ids, fresh = add_jobs(conn, suite_id, 0, ready.news, force=ready.force)
    for number, stage in enumerate(ready.later, start=1):
        suite_stages.insert(conn, suite_id, number, stage.model_dump(mode="json"))
    if ready.sweep is None:
        return Inserted(suite_id, fresh)
    sweep_id = sweeps.insert(conn, suite_id, *ready.sweep_sources, ready.sweep.body.model_dump(mode="json"))
    sweeps.add(conn, sweep_id, list(zip(ready.sweep.members, job_ids, strict=True)))
    return Inserted(suite_id, fresh, sweep_id)


def add_jobs(
    conn: Connection[Any], suite_id: int, stage: int, news: Sequence[jobs.NewJob], *, force: bool
) -> tuple[list[int], list[tuple[str, int]]]:
    """Make jobs, or those that answer for them, part of the suite; returns their numbers, and the new ones' queues."""
    job_ids, fresh = [], []
    for key in sorted({new.reuse_key for new in news}):  # in one order, so that two suites cannot block each other
        jobs.lock_reuse_key(conn, key)
    start = suites.next_position(conn, suite_id)
    for position, new in enumerate(news, start):
        found = None if force else jobs.reusable(conn, new.reuse_key)
        job_id = jobs.insert(conn, new) if found is None else found
        suites.add(conn, suite_id, position, job_id, reused=found is not None, stage=stage)
        job_ids.append(job_id)
        if found is None:
            fresh.append((new.queue, job_id))
    return job_ids, fresh


def _store(pool: ConnectionPool[Connection[Any]], ready: Prepared) -> Inserted:
    with pool.connection() as conn, conn.transaction():
        return insert(conn, ready)


async def _check_later(turns: resolving.Turns, name: str, stages: Sequence[PlannedStage], settings: Settings) -> None:
    """Raise what a stage's submission would raise, but for what its runs will be like."""
    models: list[str] = []
    datasets: list[str] = []
    for stage in stages:
        own = [source for source in stage.models if not suite_runs.names_runs(source)]
        stage_jobs.check(name, stage, own[0] if own else suite_runs.STANDS_FOR_RUNS)
        models += [*own, *(item.model for item in stage.probes if item.model)]
        datasets += [item.dataset or stage.dataset for item in stage.probes]
    if datasets:
        await resolving.resolve_all(turns, models, datasets, settings)


def _refuse_equal_members(sweep: PlannedSweep, news: Sequence[jobs.NewJob]) -> None:
    seen: dict[str, str] = {}
    for member, new in zip(sweep.members, news, strict=True):
        if new.reuse_key in seen:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"Two members of the sweep are the same training: {seen[new.reuse_key]!r} and {member.label!r}.",
                "Take a value away from an axis, or a variant that equals another one.",
            )
        seen[new.reuse_key] = member.label


def _refuse_steps_without_validation(rule: EarlyStopping, news: Sequence[jobs.NewJob]) -> None:
    for new in news:
        parameters = TrainingParameters.model_validate(new.parameters)
        every = parameters.validation.every
        for step in rule.after_steps:
            if step % every or step >= parameters.steps:
                raise KeyholeError(
                    ErrorCode.INVALID_REQUEST,
                    f"early_stopping compares at step {step}, where {new.label or 'a member'} has no validation or "
                    f"ends: it has one every {every} of {parameters.steps} steps.",
                    "Give steps before the end that are multiples of validation.every.",
                )
