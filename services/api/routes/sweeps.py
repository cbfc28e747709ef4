"""/v1/sweeps: one training in several settings, with several variants and seeds, and what came of it."""

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from db.repositories import sweeps
from db.repositories.sweeps import Request, SweepRow
from db.sweep_results import SettingResult, summarized
from services.api import cursors
from services.api.auth import Reader, Submitter
from services.api.database import Database, Pool, ResolvingTurns, ServerSettings
from services.api.suite_plan import plan_of_sweep
from services.api.suites import Inserted, Prepared, announce, insert, prepared_plan
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState
from services.contracts.sweeps import (
    SeedNoise,
    SweepCreate,
    SweepDetail,
    SweepDifference,
    SweepLead,
    SweepPage,
    SweepSetting,
    SweepView,
)

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

SweepId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the sweep's number")]


@router.post("", status_code=202)
async def create_sweep(
    body: SweepCreate,
    caller: Submitter,
    pool: Pool,
    turns: ResolvingTurns,
    settings: ServerSettings,
    response: Response,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="repeating a request with its key makes no second sweep"),
    ] = None,
) -> SweepDetail:
    """Submit a sweep: all of its jobs, or none. Jobs that stand already are made part of it."""
    request = None
    if idempotency_key is not None:  # answer a repetition before touching the sources: they may have moved since
        request = Request(caller.token_id, idempotency_key, _digest(body))
        earlier = await run_in_threadpool(_earlier, pool, request)
        if earlier is not None:
            return await run_in_threadpool(_answer, pool, response, earlier)
    ready = await prepared_plan(turns, plan_of_sweep(body), token_id=caller.token_id, settings=settings)
    inserted = await run_in_threadpool(_store, pool, ready, request)
    if isinstance(inserted, int):  # another request with the key was faster
        return await run_in_threadpool(_answer, pool, response, inserted)
    await run_in_threadpool(announce, settings, inserted)
    assert inserted.sweep_id is not None
    return await run_in_threadpool(_answer, pool, response, inserted.sweep_id)


@router.get("")
def list_sweeps(
    caller: Reader,
    conn: Database,
    q: Annotated[str | None, Query(max_length=200, description="matches a part of the name")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> SweepPage:
    """Sweeps, newest first."""
    before_id = cursors.decode(cursor) if cursor else None
    rows = sweeps.page(conn, before_id=before_id, text=q, limit=limit + 1)
    items = [SweepView(**_shared(row)) for row in rows[:limit]]
    return SweepPage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get("/{sweep_id}")
def read_sweep(sweep_id: SweepId, caller: Reader, conn: Database) -> SweepDetail:
    """A sweep with its members, the setting of least mean loss of each variant, and what of that exceeds seed noise."""
    return _detail(conn, sweep_id)


def _digest(body: SweepCreate) -> bytes:
    text = json.dumps(body.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def _earlier(pool: Pool, request: Request) -> int | None:
    with pool.connection() as conn, conn.transaction():
        return _made_before(conn, request)


def _made_before(conn: Database, request: Request) -> int | None:
    """The sweep that the same request made; the key is locked until the end of the transaction."""
    stored = sweeps.lock_request(conn, request)
    if stored is None:
        return None
    if stored.body_sha256 != request.body_sha256:
        raise KeyholeError(
            ErrorCode.IDEMPOTENCY_MISMATCH,
            f"The idempotency key {request.key!r} was used with another body; it made sweep {stored.sweep_id}.",
            "Send a new key with a new body.",
        )
    return stored.sweep_id


def _store(pool: Pool, ready: Prepared, request: Request | None) -> Inserted | int:
    """Insert the sweep unless, under the lock of the request, there is one: its number."""
    with pool.connection() as conn, conn.transaction():
        earlier = _made_before(conn, request) if request is not None else None
        if earlier is not None:
            return earlier
        inserted = insert(conn, ready)
        if request is not None:
            assert inserted.sweep_id is not None
            sweeps.insert_request(conn, request, inserted.sweep_id)
        return inserted


def _answer(pool: Pool, response: Response, sweep_id: int) -> SweepDetail:
    response.headers["Location"] = f"/v1/sweeps/{sweep_id}"
    with pool.connection() as conn:
        return _detail(conn, sweep_id)


def _detail(conn: Database, sweep_id: int) -> SweepDetail:
    row = sweeps.get(conn, sweep_id)
    if row is None:
        raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no sweep {sweep_id}.", "List sweeps with: keyhole sweeps")
    members = sweeps.members(conn, sweep_id)
    result = summarized(map(sweeps.outcome, members))
    return SweepDetail(
        **_shared(row),
        parameters=row.body["parameters"],
        axes=row.body["axes"],
        early_stopping=row.body["early_stopping"],
        members=members,
        settings=[_setting(each) for each in result.settings],
        lacking=result.lacking,
        best=[_setting(each) for each in result.best.values()],
        leads=[SweepLead(**asdict(each)) for each in result.leads],
        noise=SeedNoise(**asdict(result.noise)) if result.noise is not None else None,
        differences=[SweepDifference(**asdict(each)) for each in result.differences],
    )


def _setting(result: SettingResult) -> SweepSetting:
    return SweepSetting(
        variant=result.variant,
        setting=dict(result.setting),
        seeds=result.seeds,
        losses_nats=list(result.losses_nats),
        mean_nats=result.mean_nats,
        sd_nats=result.sd_nats,
    )


def _shared(row: SweepRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "suite_id": row.suite_id,
        "name": row.name,
        "created_at": row.created_at,
        "submitted_by": row.submitted_by,
        "model": row.model,
        "dataset": row.dataset,
        "runs": row.runs,
        "deleted": row.deleted,
        "jobs_by_state": {JobState(state): number for state, number in row.jobs_by_state.items()},
    }
