"""/v1/runs: runs, trained or imported, and their numbers by step."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from db.repositories import run_listing
from db.repositories.run_listing import RunFilter
from services.api import cursors, formats
from services.api.auth import Reader, Submitter
from services.api.database import Database, Pool, ResolvingTurns, ServerSettings
from services.api.run_import import import_run
from services.contracts.checkpoints import ImportedRun, RunImport
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.runs import RUN_STATES, RunDetail, RunPage

router = APIRouter(prefix="/v1/runs", tags=["runs"])

RunId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the run's number")]
_FILES: dict[int | str, dict[str, Any]] = {200: {"content": {media: {} for media in formats.MEDIA_TYPES.values()}}}


@router.post("", status_code=201)
async def create_run(
    body: RunImport, caller: Submitter, pool: Pool, turns: ResolvingTurns, settings: ServerSettings, response: Response
) -> ImportedRun:
    """Import models that exist already as the checkpoints of a run. Their files stay where they are."""
    run_id = await import_run(pool, turns, body, token_id=caller.token_id, settings=settings)
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return await run_in_threadpool(_imported, pool, run_id)


@router.get("")
def list_runs(
    caller: Reader,
    conn: Database,
    q: Annotated[str | None, Query(max_length=200, description="part of name, model or dataset")] = None,
    variant: Annotated[list[str] | None, Query(max_length=100, description="control, natq, natq+qk_norm, …")] = None,
    state: Annotated[list[Literal[RUN_STATES]] | None, Query(description="state of its job, or imported")] = None,  # type: ignore[valid-type]  # values of a tuple
    seed: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    suite: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="runs of this suite")] = None,
    sweep: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="runs of this sweep")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> RunPage:
    """Runs, newest first."""
    condition = RunFilter(q, variant or (), state or (), seed, suite, sweep)
    before_id = cursors.decode(cursor) if cursor else None
    rows = run_listing.page(conn, condition, before_id=before_id, limit=limit + 1)
    items = rows[:limit]
    return RunPage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get("/{run_id}")
def read_run(run_id: RunId, caller: Reader, conn: Database) -> RunDetail:
    """A run with its parameters, the names of its numbers and its checkpoints."""
    return _detail(conn, run_id)


def _detail(conn: Database, run_id: int) -> RunDetail:
    found = run_listing.get(conn, run_id)
    if found is None:
        raise _missing(run_id)
    view, parameters = found
    return RunDetail(
        **view.model_dump(),
        parameters=parameters,
        metrics=run_listing.metric_names(conn, run_id),
        checkpoints=run_listing.checkpoints(conn, run_id),
    )


@router.get("/{run_id}/metrics", response_class=StreamingResponse, responses=_FILES)
def run_metrics(
    run_id: RunId,
    caller: Reader,
    conn: Database,
    metric: Annotated[list[str] | None, Query(max_length=100, description="only these; repeatable")] = None,
    after_step: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="only later steps")] = None,
    format: formats.Format = "json",
) -> StreamingResponse:
    """The run's numbers by step, in long form: step, metric, layer, head, value."""
    _require(conn, run_id)
    batch = run_listing.metrics(conn, run_id, metric, after_step)
    return _file(format, batch)


@router.get("/{run_id}/matrices", response_class=StreamingResponse, responses=_FILES)
def run_matrices(run_id: RunId, caller: Reader, conn: Database, format: formats.Format = "json") -> StreamingResponse:
    """Spectral norms of the run's weight matrices and of their updates, by step."""
    _require(conn, run_id)
    return _file(format, run_listing.matrices(conn, run_id))


def _imported(pool: Pool, run_id: int) -> ImportedRun:
    with pool.connection() as conn:
        return ImportedRun(**_detail(conn, run_id).model_dump())


def _file(format_: formats.Format, batch: "run_listing.pa.RecordBatch") -> StreamingResponse:
    pieces = formats.encoded(format_, batch.schema, [batch])
    return StreamingResponse(pieces, media_type=formats.MEDIA_TYPES[format_])


def _require(conn: Database, run_id: int) -> None:
    if not run_listing.exists(conn, run_id):
        raise _missing(run_id)


def _missing(run_id: int) -> KeyholeError:
    return KeyholeError(ErrorCode.NOT_FOUND, f"There is no run {run_id}.", "List runs with: keyhole runs")
