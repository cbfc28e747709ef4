"""/v1/checkpoints: models at steps of runs, and their files."""

from collections.abc import Iterator
from itertools import chain, islice
from threading import BoundedSemaphore
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse

from db import stored_files
from db.checkpoint_pieces import BATCH_BYTES
from db.connection import connect
from db.repositories import checkpoints
from db.repositories.checkpoints import CheckpointFilter, CheckpointRow
from db.stored_files import StoredFile
from services.api import cursors
from services.api.auth import Admin, Reader
from services.api.database import Database, Pool, ServerSettings
from services.api.request_context import CutOff
from services.contracts.checkpoints import (
    REASONS,
    CheckpointDetail,
    CheckpointFile,
    CheckpointPage,
    CheckpointVerified,
    CheckpointView,
)
from services.contracts.errors import ErrorCode, KeyholeError

MOST_DOWNLOADS = 16  # of one API process at once: each has a connection of its own, and PostgreSQL's are counted
_downloads = BoundedSemaphore(MOST_DOWNLOADS)
_log = structlog.get_logger("keyhole.api")
_FILE_TYPE = "application/octet-stream"

router = APIRouter(prefix="/v1/checkpoints", tags=["checkpoints"])

CheckpointId = Annotated[int, Path(ge=1, le=2**31 - 1, description="the checkpoint's number")]
Step = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
Loss = Annotated[float | None, Query(allow_inf_nan=False, description="validation loss in nats")]


@router.get("")
def list_checkpoints(
    caller: Reader,
    conn: Database,
    run: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="only of this run")] = None,
    min_step: Step = None,
    max_step: Step = None,
    reason: Annotated[Literal[REASONS] | None, Query(description="kept for it")] = None,  # type: ignore[valid-type]  # values of a tuple
    model_type: Annotated[str | None, Query(max_length=100, description="architecture, such as gpt2")] = None,
    variant: Annotated[str | None, Query(max_length=100, description="control, natq, natq+qk_norm, …")] = None,
    min_loss: Loss = None,
    max_loss: Loss = None,
    cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> CheckpointPage:
    """Checkpoints, newest first."""
    condition = CheckpointFilter(run, min_step, max_step, reason, model_type, variant, min_loss, max_loss)
    before_id = cursors.decode(cursor) if cursor else None
    rows = checkpoints.listed(conn, condition, before_id=before_id, limit=limit + 1)
    items = [_view(row) for row in rows[:limit]]
    return CheckpointPage(items=items, next=cursors.encode(items[-1].id) if len(rows) > limit else None)


@router.get("/{checkpoint_id}")
def read_checkpoint(checkpoint_id: CheckpointId, caller: Reader, conn: Database) -> CheckpointDetail:
    """A checkpoint with its configuration and its files."""
    row = _found(conn, checkpoint_id)
    files = [] if row.source else stored_files.files_of(conn, checkpoint_id)
    return CheckpointDetail(
        **_view(row).model_dump(),
        config=row.config,
        files=[CheckpointFile(name=file.name, bytes=file.size, sha256=file.sha256.hex()) for file in files],
    )


@router.delete("/{checkpoint_id}", status_code=204)
def delete_checkpoint(checkpoint_id: CheckpointId, caller: Admin, conn: Database) -> None:
    """Delete a checkpoint that no open job needs. Its bytes are freed within hours, if no other checkpoint has them."""
    with conn.transaction():
        checkpoints.delete(conn, checkpoint_id)


@router.post("/{checkpoint_id}/verify")
def verify_checkpoint(
    checkpoint_id: CheckpointId, caller: Reader, pool: Pool, settings: ServerSettings
) -> CheckpointVerified:
    """Read all files and compare them with their SHA-256; damage is a problem that names file and piece."""
    with pool.connection() as conn:
        files = stored_files.files_of(conn, checkpoint_id)
    read = sum(len(content) for file in files for content in _contents(settings, checkpoint_id, file))
    return CheckpointVerified(id=checkpoint_id, files=len(files), bytes=read)


@router.get(
    "/{checkpoint_id}/files/{name}",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file", "content": {"application/octet-stream": {}}},
        304: {"description": "The file has the SHA-256 of If-None-Match"},
    },
)
def checkpoint_file(
    checkpoint_id: CheckpointId,
    name: Annotated[str, Path(max_length=255)],
    caller: Reader,
    pool: Pool,
    settings: ServerSettings,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """One file, whole; its SHA-256 is the ETag. A connection that breaks shows as a body that is too short.

    Damage is a problem where it is found at the start; in a large file it may be found later, and breaks the body off.
    """
    file = _file(pool, checkpoint_id, name)
    if (unchanged := _unchanged(file, if_none_match)) is not None:
        return unchanged
    contents = _contents(settings, checkpoint_id, file)
    # what is wrong from the start is a problem, not a broken body; as much as a batch is in memory anyway
    checked = list(contents if file.size <= BATCH_BYTES else islice(contents, 1))
    begun = chain(checked, _or_cut_off(contents, checkpoint_id))
    return StreamingResponse(begun, media_type=_FILE_TYPE, headers=_headers(file))


@router.head("/{checkpoint_id}/files/{name}", include_in_schema=False)
def checkpoint_file_head(
    checkpoint_id: CheckpointId,
    name: Annotated[str, Path(max_length=255)],
    caller: Reader,
    pool: Pool,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """Size and SHA-256 of a file, without reading it."""
    file = _file(pool, checkpoint_id, name)
    return _unchanged(file, if_none_match) or Response(media_type=_FILE_TYPE, headers=_headers(file))


def _file(pool: Pool, checkpoint_id: int, name: str) -> StoredFile:
    with pool.connection() as conn:
        files = {file.name: file for file in stored_files.files_of(conn, checkpoint_id)}
    if name not in files:
        raise KeyholeError(
            ErrorCode.NOT_FOUND,
            f"Checkpoint {checkpoint_id} has no file {name!r}.",
            f"Its files are {', '.join(files)}.",
        )
    return files[name]


def _headers(file: StoredFile) -> dict[str, str]:
    return {"ETag": f'"{file.sha256.hex()}"', "Accept-Ranges": "none", "Content-Length": str(file.size)}


def _unchanged(file: StoredFile, if_none_match: str | None) -> Response | None:
    """The answer to who has the file already."""
    tag = _headers(file)["ETag"]
    if if_none_match and tag in [each.strip().removeprefix("W/") for each in if_none_match.split(",")]:
        return Response(status_code=304, headers={"ETag": tag})
    return None


def _or_cut_off(contents: Iterator[bytes], checkpoint_id: int) -> Iterator[bytes]:
    """The contents of an answer that has begun; damage goes to the log and raises CutOff."""
    try:
        yield from contents
    except KeyholeError as error:
        _log.error(str(error.code), checkpoint=checkpoint_id, detail=error.message)
        raise CutOff from error


def _contents(settings: ServerSettings, checkpoint_id: int, file: StoredFile) -> Iterator[bytes]:
    """The file over a connection of its own: a download may last long, and the pool is for short requests.

    Raises KeyholeError: checkpoint_damaged, unavailable (too many at once).
    """
    assert settings.database_url is not None  # the pool was opened with it
    if not _downloads.acquire(blocking=False):
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"{MOST_DOWNLOADS} files of checkpoints are being read already, as many as the API reads at once.",
            "Try again when one of the downloads or verifications has ended.",
        )
    try:
        with connect(settings.database_url.get_secret_value(), application_name="keyhole-api export") as conn:
            yield from stored_files.contents(conn, checkpoint_id, file)
    finally:
        _downloads.release()


def _found(conn: Database, checkpoint_id: int) -> CheckpointRow:
    row = checkpoints.get(conn, checkpoint_id)
    if row is None:
        raise stored_files.no_checkpoint(checkpoint_id)
    return row


def _view(row: CheckpointRow) -> CheckpointView:
    shared = {name: value for name, value in vars(row).items() if name in CheckpointView.model_fields}
    return CheckpointView(**shared, run=row.run_name)
