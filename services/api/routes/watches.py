"""/v1/watches and /v1/rules: probes of new checkpoints, and rules on what comes back."""

from typing import Annotated, get_args

from fastapi import APIRouter, Path, Query
from fastapi.concurrency import run_in_threadpool

from db.repositories import alerts, watch_models, watches
from services.api import cursors
from services.api.alert_views import watch_view
from services.api.auth import Reader, Submitter
from services.api.database import Database, Pool, ResolvingTurns, ServerSettings
from services.api.watch_creation import create
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.rule_texts import GRAMMAR
from services.contracts.rules import TRAINING, Statistic, levels_of
from services.contracts.training.numbers import METRICS
from services.contracts.watches import (
    RuleGuide,
    WatchableMetric,
    WatchCreate,
    WatchDetail,
    WatchedModel,
    WatchPage,
)

router = APIRouter(prefix="/v1", tags=["watches"])

WatchId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the watch's number")]
_NEWEST = 50


@router.get("/rules")
def list_rules(caller: Reader) -> RuleGuide:
    """What rules can be about, and how they are written."""
    metrics = [
        WatchableMetric(
            of=kind.name, metric=each.name, levels=list(levels_of(kind.name, each.name)), meaning=each.comment
        )
        for kind in KINDS.values()
        for each in kind.metrics
    ]
    metrics += [
        WatchableMetric(of=TRAINING, metric=name, levels=list(metric.levels), meaning=metric.meaning)
        for name, metric in METRICS.items()
    ]
    return RuleGuide(grammar=GRAMMAR, statistics=list(get_args(Statistic)), metrics=metrics)


@router.post("/watches", status_code=201)
async def create_watch(
    body: WatchCreate, caller: Submitter, pool: Pool, turns: ResolvingTurns, settings: ServerSettings
) -> WatchDetail:
    """Watch a run, the runs of a suite or sweep, a folder of checkpoints, or a repository on the hub."""
    watch_id = await create(pool, turns, body, token_id=caller.token_id, settings=settings)
    return await run_in_threadpool(_fresh_detail, pool, watch_id)


@router.get("/watches")
def list_watches(
    caller: Reader,
    conn: Database,
    q: Annotated[str | None, Query(max_length=200, description="matches a part of name or target")] = None,
    active: Annotated[bool | None, Query(description="only those that look, or no longer look")] = None,
    run: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="only those that look at this run")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> WatchPage:
    """Watches, newest first."""
    before_id = cursors.decode(cursor) if cursor else None
    rows = watches.page(conn, before_id=before_id, text=q, active=active, run_id=run, limit=limit + 1)
    by_rule = alerts.by_rule(conn, [row.id for row in rows[:limit]])
    items = [watch_view(row, by_rule) for row in rows[:limit]]
    return WatchPage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get("/watches/{watch_id}")
def read_watch(watch_id: WatchId, caller: Reader, conn: Database) -> WatchDetail:
    """A watch with its rules and the checkpoints it has seen last."""
    return _detail(conn, watch_id)


@router.post("/watches/{watch_id}/stop")
def stop_watch(watch_id: WatchId, caller: Submitter, conn: Database) -> WatchDetail:
    """Look no longer. Jobs that were submitted go on."""
    _found(conn, watch_id)
    with conn.transaction():
        if watches.lock(conn, watch_id, skip=False):
            watches.end(conn, watch_id, watches.STOPPED)
    return _detail(conn, watch_id)


@router.post("/watches/{watch_id}/resume")
def resume_watch(watch_id: WatchId, caller: Submitter, conn: Database) -> WatchDetail:
    """Look again, from where the watch was stopped; checkpoints that it had given up are tried again."""
    _found(conn, watch_id)
    with conn.transaction():
        watches.resume(conn, watch_id)
    return _detail(conn, watch_id)


@router.delete("/watches/{watch_id}", status_code=204)
def delete_watch(watch_id: WatchId, caller: Submitter, conn: Database) -> None:
    """Delete a watch with its alerts. Suites and jobs that it submitted stay."""
    if not watches.delete(conn, watch_id):
        raise _missing(watch_id)


def _fresh_detail(pool: Pool, watch_id: int) -> WatchDetail:
    with pool.connection() as conn:
        return _detail(conn, watch_id)


def _detail(conn: Database, watch_id: int) -> WatchDetail:
    row = _found(conn, watch_id)
    newest = [WatchedModel.model_validate(each) for each in watch_models.newest(conn, watch_id, _NEWEST)]
    shown = {name: value for name, value in row.body.items() if name not in ("webhook", "kinds")}
    return WatchDetail(**watch_view(row, alerts.by_rule(conn, [watch_id])).model_dump(), body=shown, newest=newest)


def _found(conn: Database, watch_id: int) -> watches.WatchRow:
    row = watches.get(conn, watch_id)
    if row is None:
        raise _missing(watch_id)
    return row


def _missing(watch_id: int) -> KeyholeError:
    return KeyholeError(ErrorCode.NOT_FOUND, f"There is no watch {watch_id}.", "List watches with: keyhole watches")
