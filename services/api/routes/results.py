"""/v1/jobs/{id}/summary and /tables: what a job measured."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Literal

import pyarrow as pa
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from db import export
from db.connection import connect
from db.repositories import summaries
from db.token_export import TOKEN_SCHEMA, token_batches
from services.api import formats
from services.api.auth import Reader
from services.api.database import Database, Pool, ServerSettings
from services.api.routes.jobs import JobId, found
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import SummaryRow
from services.contracts.kinds import KINDS
from services.contracts.tables import TOKEN_TABLE, ResultTable

router = APIRouter(prefix="/v1/jobs", tags=["results"])

Index = Annotated[int | None, Query(ge=0, le=32_767)]


@router.get("/{job_id}/summary")
def job_summary(
    job_id: JobId,
    caller: Reader,
    conn: Database,
    metric: Annotated[str | None, Query(max_length=100)] = None,
    level: Annotated[summaries.Level | None, Query(description="all three unless told")] = None,
) -> list[SummaryRow]:
    """Distributions of the job's metrics by head, by layer and for the whole model; empty until it has succeeded."""
    found(conn, job_id)
    return summaries.of_job(conn, job_id, metric, level)


@router.get(
    "/{job_id}/tables/{table}",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The job's rows, in the order they are stored",
            "content": {formats.MEDIA_TYPES["arrow"]: {}, formats.MEDIA_TYPES["csv"]: {}},
        }
    },
)
def job_table(
    job_id: JobId,
    table: str,
    caller: Reader,
    pool: Pool,
    settings: ServerSettings,
    format: Annotated[Literal["arrow", "csv"], Query(description="Arrow IPC stream or CSV")] = "arrow",
    column: Annotated[list[str] | None, Query(max_length=100, description="only these; repeatable")] = None,
    layer: Index = None,
    head: Index = None,
) -> StreamingResponse:
    """All rows of one per-query table that the job has stored so far, streamed from one snapshot.

    The table `token` has the token, its text and its document at every (sequence, position) of the job's data.
    A connection that breaks shows as a broken body, never as a table that looks whole.
    """
    with pool.connection() as conn:
        described = None if table == TOKEN_TABLE else _table_of(conn, job_id, table)
        found(conn, job_id)
    has = () if described is None else described.key
    _refuse_filters(table, {"layer": layer, "head": head}, has)
    if described is None:
        _refuse_columns(column)
        schema, batches = TOKEN_SCHEMA, _token_batches(settings, job_id)
    else:
        schema = export.schema(described, column)
        batches = _batches(settings, described, job_id, column, layer, head)
    begun = chain([next(batches, None)], batches)  # what is wrong from the start is a problem, not a broken body
    rows = (batch for batch in begun if batch is not None)
    return StreamingResponse(formats.encoded(format, schema, rows), media_type=formats.MEDIA_TYPES[format])


def _table_of(conn: Database, job_id: int, name: str) -> ResultTable:
    """The table's description; raises KeyholeError (not_found) that names those the job's kind fills."""
    kind = KINDS[found(conn, job_id).kind]
    for table in kind.tables:
        if table.name == name:
            return table
    raise KeyholeError(
        ErrorCode.NOT_FOUND,
        f"Jobs of kind {kind.name} have no table {name[:100]!r}.",
        f"Tables: {', '.join([*(table.name for table in kind.tables), TOKEN_TABLE])}.",
    )


def _refuse_filters(table: str, filters: dict[str, int | None], has: Sequence[str]) -> None:
    for name, value in filters.items():
        if value is not None and name not in has:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST, f"The table {table} has no column {name}.", f"Leave out {name}."
            )


def _refuse_columns(columns: list[str] | None) -> None:
    if columns:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST, f"The table {TOKEN_TABLE} is sent whole.", "Leave out the filter column."
        )


def _token_batches(settings: ServerSettings, job_id: int) -> Iterator[pa.RecordBatch]:
    assert settings.database_url is not None  # the pool was opened with it
    with connect(settings.database_url.get_secret_value(), application_name="keyhole-api export") as conn:
        yield from token_batches(conn, job_id)


def _batches(
    settings: ServerSettings,
    table: ResultTable,
    job_id: int,
    columns: list[str] | None,
    layer: int | None,
    head: int | None,
) -> Iterator[pa.RecordBatch]:
    """Batches over a connection of their own: a download may last long, and the pool is for short requests."""
    assert settings.database_url is not None  # the pool was opened with it
    with connect(settings.database_url.get_secret_value(), application_name="keyhole-api export") as conn:
        yield from export.table_batches(conn, table, job_id, columns=columns, layer=layer, head=head)
