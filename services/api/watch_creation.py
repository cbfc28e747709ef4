"""From the submission of a watch to its row: all that can be known to be wrong is told now, not at every look."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from psycopg_pool import ConnectionPool
from pydantic import ValidationError

from db.repositories import watch_models, watch_targets, watches
from services.api import resolving, stage_jobs, webhooks
from services.api.suite_plan import plan, trains
from services.api.suite_runs import STANDS_FOR_RUNS
from services.api.watched_series import present
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.rules import MetricRule, settled
from services.contracts.settings import Settings
from services.contracts.suites import SuiteCreate
from services.contracts.watches import Target, WatchCreate, parse_target
from services.sources.roots import model_path

Pool = ConnectionPool[Connection[Any]]


async def create(pool: Pool, turns: resolving.Turns, body: WatchCreate, *, token_id: int, settings: Settings) -> int:
    """Store the watch; returns its number.

    Raises: RequestValidationError, KeyholeError (not_found, invalid_request, invalid_source, dataset_…, unavailable).
    """
    _require_time_to_come(body)
    target = parse_target(body.target)
    if body.webhook is not None:
        webhooks.require_allowed(body.webhook, settings)
    there = await _present(pool, turns, target, settings)
    kinds: list[str] = []
    if body.preset is not None or body.probes:
        body = body.model_copy(update={"dataset": await run_in_threadpool(_dataset, pool, body, target)})
        kinds = _checked_kinds(body, there)
        chosen = plan(_suite(body, STANDS_FOR_RUNS)).stages[0].dataset
        await resolving.resolve_all(turns, [], [chosen], settings)
        body = body.model_copy(update={"dataset": chosen})
    stored = body.model_dump(mode="json", exclude_none=True) | {"rules": _settled_rules(body, kinds, target)}
    stored |= {"kinds": kinds, "target": str(target)}
    name = body.name or f"{', '.join(kinds) or 'training'} of {target}"[:200]
    return await run_in_threadpool(_store, pool, name, target, stored, there, token_id)


def _require_time_to_come(body: WatchCreate) -> None:
    if body.until is not None and body.until <= datetime.now(UTC):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"until is {body.until.isoformat()}, which has passed.",
            "Give a time to come, or leave it out: a watch of runs ends with them anyway.",
        )


async def _present(pool: Pool, turns: resolving.Turns, target: Target, settings: Settings) -> list[str]:
    """What the target has already; raises KeyholeError if there is no such thing. A hub may be down for now."""
    if target.source is None:
        await run_in_threadpool(_require_target, pool, target)
        return []
    if target.form == "path":
        folder = model_path(target.source.removeprefix("path:").removesuffix("/*"), settings)
        if not folder.is_dir():
            raise KeyholeError(
                ErrorCode.MODEL_NOT_FOUND,
                f"There is no folder {folder}.",
                "Make it before it is watched; workers must see it under the same path.",
            )
    try:
        return await present(turns, target.source, settings)
    except KeyholeError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            return []
        raise


def _require_target(pool: Pool, target: Target) -> None:
    assert target.number is not None
    with pool.connection() as conn:
        if not watch_targets.exists(conn, target.form, target.number):
            raise KeyholeError(
                ErrorCode.NOT_FOUND,
                f"There is no {target.form} {target.number}.",
                f"List them with: keyhole {target.form}s",
            )


def _dataset(pool: Pool, body: WatchCreate, target: Target) -> str | None:
    """The body's, else that of the runs, unless a preset has its own; raises KeyholeError (invalid_request)."""
    if body.dataset is not None or body.preset is not None:
        return body.dataset
    found: list[str] = []
    if target.number is not None:
        with pool.connection() as conn:
            found = watch_targets.datasets(conn, target.form, target.number)
    if len(found) != 1:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "The watch does not say on which data set its probes measure"
            + (f", and its runs have {', '.join(found)}." if found else "."),
            "Give a dataset, such as builtin:python-docs.",
        )
    return found[0]


def _checked_kinds(body: WatchCreate, there: Sequence[str]) -> list[str]:
    """The kinds of the probes; raises what is wrong with their parameters on whatever models come."""
    model = there[0] if there else STANDS_FOR_RUNS
    of_queue = {name: kind.queue for name, kind in KINDS.items()}
    training = next((item.kind for item in body.probes if of_queue.get(item.kind) == "training"), None)
    if training is not None:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"A watch submits probes; {training} is none.",
            f"Probes: {', '.join(name for name, queue in of_queue.items() if queue == 'probe')}.",
        )
    planned = plan(_suite(body, model))
    if len(planned.stages) > 1 or trains(planned.stages[0]):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"The preset {body.preset} trains or has several stages; a watch submits probes of one checkpoint.",
            "Name the probes one by one.",
        )
    (stage,) = planned.stages
    stage_jobs.check(planned.name, stage, model)
    for item in stage.probes:
        try:
            parameters = KINDS[item.kind].parameters.model_validate(item.parameters)
        except ValidationError:
            continue  # told by the check above
        parameters.other_models()  # raises for kinds that compare checkpoints and are told none
    return list(dict.fromkeys(item.kind for item in stage.probes))


def _suite(body: WatchCreate, model: str) -> SuiteCreate:
    fields = {"preset", "probes", "dataset", "parameters", "priority", "time_limit_s"}
    return SuiteCreate.model_validate({**body.model_dump(include=fields, exclude_none=True), "models": [model]})


def _settled_rules(body: WatchCreate, kinds: list[str], target: Target) -> list[dict[str, Any]]:
    """The rules with nothing left open; raises KeyholeError (invalid_request) for one that could never be met."""
    found = []
    for number, rule in enumerate(body.rules):
        origin = rule.origin()
        try:
            if isinstance(rule, MetricRule):
                rule = settled(rule, kinds, of_runs=target.of_runs)
            elif origin not in (*kinds, "training"):
                raise ValueError(f"it needs the probe {origin}, which the watch has not")
        except ValueError as error:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"rules.{number} cannot be met: {error}.",
                f"Probes of the watch: {', '.join(kinds) or 'none'}. What can be watched: GET /v1/rules.",
            ) from error
        found.append(rule.model_dump(mode="json", exclude_none=True))
    return found


def _store(pool: Pool, name: str, target: Target, body: dict[str, Any], there: Sequence[str], token_id: int) -> int:
    with pool.connection() as conn, conn.transaction():
        watch_id = watches.insert(conn, name, str(target), body, token_id)
        if target.number is not None:
            watch_targets.join_runs(conn, watch_id, target.form, target.number)
        if not body["existing"]:
            for each in watch_targets.unseen_checkpoints(conn, watch_id, None) if target.of_runs else ():
                watch_models.add(conn, watch_id, each.source, run_id=each.run_id, step=each.step, judged=True)
            for source in there:
                watch_models.add(conn, watch_id, source, judged=True)
    return watch_id
