"""/v1/jobs: submit, list, read, cancel, retry and delete jobs."""

import hashlib
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.concurrency import run_in_threadpool

from db.repositories import attempts, jobs, suite_stages, sweeps
from services.api import cursors, enqueue, views
from services.api.auth import Admin, Reader, Submitter
from services.api.database import Database, Pool, ResolvingTurns, ServerSettings
from services.api.submission import submit
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import JobCreate, JobDetail, JobPage
from services.contracts.kinds import KINDS, kind_named
from services.contracts.states import JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the job's number")]
Text = Annotated[str | None, Query(max_length=200, description="matches a part of it, in any case")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="a repetition with this key and body answers with the same job",
    ),
]


@router.post(
    "",
    status_code=202,
    responses={200: {"model": JobDetail, "description": "A job that stood already answers (`reused` is true)"}},
)
async def create_job(
    body: JobCreate,  # type: ignore[valid-type]  # a union that is built from the table of kinds
    caller: Submitter,
    pool: Pool,
    turns: ResolvingTurns,
    settings: ServerSettings,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobDetail:
    """Submit a job. 202 for a new one; 200 if the same job already succeeded, or waits or runs, unless `force`."""
    submitted = await submit(
        pool,
        turns,
        body,
        token_id=caller.token_id,
        idempotency_key=idempotency_key,
        settings=settings,
    )
    response.status_code = 200 if submitted.reused else 202
    response.headers["Location"] = f"/v1/jobs/{submitted.job_id}"
    return await run_in_threadpool(_fresh_detail, pool, submitted.job_id, reused=submitted.reused)


@router.get("")
def list_jobs(
    caller: Reader,
    conn: Database,
    kind: Annotated[list[str] | None, Query(description="only these kinds; repeatable")] = None,
    state: Annotated[list[JobState] | None, Query(description="only these states; repeatable")] = None,
    model: Text = None,
    dataset: Text = None,
    label: Text = None,
    q: Annotated[str | None, Query(max_length=200, description="matches a part of label, model or dataset")] = None,
    submitted_by: Annotated[str | None, Query(max_length=200, description="name of the token")] = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JobPage:
    """Jobs, newest first."""
    for name in kind or ():
        kind_named(name)
    condition = jobs.JobFilter(
        kinds=kind or (),
        states=[str(wanted) for wanted in state or ()],
        model=model,
        dataset=dataset,
        label=label,
        text=q,
        submitted_by=submitted_by,
        created_after=created_after,
        created_before=created_before,
    )
    before_id = cursors.decode(cursor) if cursor else None
    rows = jobs.page(conn, condition, before_id=before_id, limit=limit + 1)
    positions = jobs.queue_positions(conn) if any(row.state == JobState.QUEUED for row in rows) else {}
    items = [views.job_view(row, positions.get(row.id)) for row in rows[:limit]]
    return JobPage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get(
    "/{job_id}",
    response_model=JobDetail,
    responses={304: {"description": "Unchanged since the ETag of If-None-Match"}},
)
def read_job(
    job_id: JobId,
    caller: Reader,
    conn: Database,
    response: Response,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> JobDetail | Response:
    """All that is known of a job. The ETag changes when the job does, not with the clock."""
    detail = _detail(conn, job_id)
    etag = _etag(detail)
    if if_none_match and _matches(if_none_match, etag):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    response.headers["Cache-Control"] = "no-cache"
    return detail


@router.post("/{job_id}/cancel")
def cancel_job(job_id: JobId, caller: Submitter, conn: Database) -> JobDetail:
    """Stop a job: a queued one at once, a running one within seconds (`cancelling` until then)."""
    with conn.transaction():
        jobs.request_cancel(conn, job_id)
    return _detail(conn, job_id)


@router.post("/{job_id}/retry", status_code=202)
def retry_job(job_id: JobId, caller: Submitter, pool: Pool, settings: ServerSettings) -> JobDetail:
    """Queue a failed or cancelled job again; what is finished of it stays, and stages that it kept back wait again."""
    with pool.connection() as conn:  # given back before the broker is told, which may be slow
        with conn.transaction():
            jobs.retry(conn, job_id)
            suite_stages.wait_again(conn, job_id)
        detail = _detail(conn, job_id)
    enqueue.announce(settings, KINDS[detail.kind].queue, job_id)
    return detail


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: JobId, caller: Admin, conn: Database) -> None:
    """Delete a job that has ended and all of its rows, its checkpoints too unless an open job is to read one.

    The results of sweeps that it is a member of (``sweeps`` of the job) lose its seed, and say so.
    """
    with conn.transaction():
        jobs.delete(conn, job_id)


def found(conn: Database, job_id: int) -> jobs.JobRow:
    """The job's row; raises KeyholeError (not_found)."""
    row = jobs.get(conn, job_id)
    if row is None:
        raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no job {job_id}.", "List jobs with: keyhole jobs")
    return row


def _detail(conn: Database, job_id: int, *, reused: bool = False) -> JobDetail:
    row = found(conn, job_id)
    positions = jobs.queue_positions(conn) if row.state == JobState.QUEUED else {}
    member_of = sweeps.of_job(conn, job_id)
    return views.job_detail(row, attempts.of_job(conn, job_id), positions.get(job_id), sweeps=member_of, reused=reused)


def _fresh_detail(pool: Pool, job_id: int, *, reused: bool) -> JobDetail:
    with pool.connection() as conn:
        return _detail(conn, job_id, reused=reused)


def _matches(if_none_match: str, etag: str) -> bool:
    """Weak comparison, as RFC 9110 has it for reads: ``W/`` does not matter, and ``*`` is any job that there is."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags


def _etag(detail: JobDetail) -> str:
    """Hash of the job without what only the clock moves."""
    stable = detail.model_copy(
        update={
            "duration_s": None,
            "progress": detail.progress.model_copy(update={"rows_per_s": None, "remaining_s": None}),
        }
    )
    return f'"{hashlib.sha256(stable.model_dump_json().encode()).hexdigest()[:32]}"'
