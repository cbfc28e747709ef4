"""/v1/jobs/{id}/events: the history of a job, as it happens or as a list."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from psycopg import Connection, Error
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
from sse_starlette import EventSourceResponse

from db.repositories import events, jobs
from services.api.auth import Reader
from services.api.database import Pool
from services.api.routes.jobs import JobId, found
from services.contracts.jobs import EventView
from services.contracts.states import JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

POLL_S = 0.5  # how often an open stream looks for news
HEARTBEAT_S = 15  # below the idle limits of common proxies
_BATCH = 500
_log = structlog.get_logger("keyhole.api")


@router.get(
    "/{job_id}/events",
    response_model=list[EventView],
    responses={
        200: {
            "description": "Server-sent events; a JSON list where Accept asks for application/json",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
)
def job_events(
    request: Request,
    job_id: JobId,
    caller: Reader,
    pool: Pool,
    accept: Annotated[str, Header()] = "text/event-stream",
    last_event_id: Annotated[int | None, Header(ge=0, le=2**63 - 1)] = None,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="only events with a larger id")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="of the JSON list")] = 1000,
) -> Response | list[EventView]:
    """Events after `Last-Event-ID` (or `after`). The stream ends when the job has ended and all is told."""
    start = last_event_id if last_event_id is not None else after
    with pool.connection() as conn:  # given back before the stream starts: streams are long, the pool is small
        found(conn, job_id)
        if "application/json" in accept and "text/event-stream" not in accept:
            return events.after(conn, job_id, start, limit)
    return EventSourceResponse(
        _stream(pool, job_id, start), ping=HEARTBEAT_S, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _stream(pool: ConnectionPool[Connection[Any]], job_id: int, last_id: int) -> AsyncIterator[dict[str, Any]]:
    yield {"retry": 2000, "comment": "keyhole"}
    while True:
        try:
            ended, news = await run_in_threadpool(_news, pool, job_id, last_id)
        except (Error, PoolTimeout, PoolClosed):
            _log.warning("event_stream_cut", job=job_id)
            return  # the client reconnects with Last-Event-ID and misses nothing
        for event in news:
            last_id = event.id
            yield {"id": str(event.id), "event": event.type, "data": json.dumps(event.model_dump(mode="json"))}
        if ended and len(news) < _BATCH:
            return
        if not news:
            await asyncio.sleep(POLL_S)


def _news(pool: ConnectionPool[Connection[Any]], job_id: int, last_id: int) -> tuple[bool, list[EventView]]:
    """(whether the job has ended, its next events); the state is read first, so that an ended job's list is whole."""
    with pool.connection() as conn:
        row = jobs.get(conn, job_id)
        return row is None or JobState(row.state).terminal, events.after(conn, job_id, last_id, _BATCH)
