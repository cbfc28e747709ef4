"""/v1/suites and /v1/presets: several jobs on one model, or on a series of models, submitted together, in stages."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.concurrency import run_in_threadpool

from db.repositories import jobs, suite_stages, suites, sweep_stopping
from db.repositories.suites import SuiteRow
from services.api import cursors, views
from services.api.auth import Reader, Submitter
from services.api.database import Database, Pool, ResolvingTurns, ServerSettings
from services.api.suites import submit
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from services.contracts.suites import (
    Preset,
    StageState,
    StageView,
    SuiteCreate,
    SuiteDetail,
    SuiteJob,
    SuitePage,
    SuiteView,
)
from services.presets import presets

router = APIRouter(prefix="/v1", tags=["suites"])

SuiteId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the suite's number")]


@router.get("/presets")
def list_presets(caller: Reader) -> list[Preset]:
    """Every preset with its settings."""
    return list(presets().values())


@router.post("/suites", status_code=202)
async def create_suite(
    body: SuiteCreate, caller: Submitter, pool: Pool, turns: ResolvingTurns, settings: ServerSettings
) -> SuiteDetail:
    """Submit a suite: all of its jobs, or none. Jobs that stand already are made part of it (`reused` is true)."""
    suite_id = await submit(pool, turns, body, token_id=caller.token_id, settings=settings)
    return await run_in_threadpool(_fresh_detail, pool, suite_id)


@router.get("/suites")
def list_suites(
    caller: Reader,
    conn: Database,
    q: Annotated[str | None, Query(max_length=200, description="matches a part of the name")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> SuitePage:
    """Suites, newest first."""
    before_id = cursors.decode(cursor) if cursor else None
    rows = suites.page(conn, before_id=before_id, text=q, limit=limit + 1)
    items = [SuiteView(**_shared(row)) for row in rows[:limit]]
    return SuitePage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get("/suites/{suite_id}")
def read_suite(suite_id: SuiteId, caller: Reader, conn: Database) -> SuiteDetail:
    """A suite with its jobs."""
    return _detail(conn, suite_id)


@router.post("/suites/{suite_id}/cancel")
def cancel_suite(suite_id: SuiteId, caller: Submitter, conn: Database) -> SuiteDetail:
    """Stop the jobs of the suite that have not ended, but for those that stood before it, and skip what follows."""
    with conn.transaction():  # first: a stage that is being submitted just now has its jobs cancelled below
        suite_stages.skip_waiting(conn, suite_id, "the suite was cancelled")
    for member in _detail(conn, suite_id).members:
        if not member.reused and not member.state.terminal and member.state is not JobState.CANCELLING:
            with conn.transaction():
                jobs.request_cancel(conn, member.id)
    return _detail(conn, suite_id)


def _detail(conn: Database, suite_id: int) -> SuiteDetail:
    row = suites.get(conn, suite_id)
    if row is None:
        raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no suite {suite_id}.", "List suites with: keyhole suites")
    members = suites.members(conn, suite_id)
    found = {each.id: each for each in jobs.listed(conn, [member.job_id for member in members])}
    positions = jobs.queue_positions(conn) if JobState.QUEUED in row.jobs_by_state else {}
    stopped = sweep_stopping.stopped(conn, suite_id) if row.sweep_id is not None else {}
    return SuiteDetail(
        **_shared(row),
        members=[
            SuiteJob(
                **views.job_view(found[each.job_id], positions.get(each.job_id)).model_dump(),
                reused=each.reused,
                stage=each.stage,
                stopped=stopped.get(each.job_id),
            )
            for each in members
            if each.job_id in found
        ],
        stages=[_stage(each) for each in suite_stages.of_suite(conn, suite_id)],
    )


def _stage(row: suite_stages.StageRow) -> StageView:
    return StageView(
        number=row.number,
        state=StageState(row.state),
        detail=row.detail,
        submitted_at=row.submitted_at,
        models=row.body["models"],
        kinds=list(dict.fromkeys(probe["kind"] for probe in row.body["probes"])),
    )


def _fresh_detail(pool: Pool, suite_id: int) -> SuiteDetail:
    with pool.connection() as conn:
        return _detail(conn, suite_id)


def _shared(row: SuiteRow) -> dict:
    return {
        "id": row.id,
        "name": row.name,
        "created_at": row.created_at,
        "submitted_by": row.submitted_by,
        "models": row.models,
        "jobs_by_state": {JobState(state): number for state, number in row.jobs_by_state.items()},
        "shards": row.shards,
        "shards_done": row.shards_done,
        "stages_waiting": row.stages_waiting,
        "sweep_id": row.sweep_id,
    }
