"""POST /v1/sql: one statement as the read-only role."""

import tempfile
from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from db import analyst
from services.api import formats
from services.api.auth import Reader
from services.api.database import Pool, ServerSettings
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import SqlRequest

router = APIRouter(prefix="/v1/sql", tags=["results"])

TRUNCATED_HEADER = "X-Keyhole-Truncated"
_MEMORY_BYTES = 8 * 2**20  # of an answer that is kept in memory; what is larger goes to a temporary file
_ANSWER_BYTES = 512 * 2**20  # bounds the temporary file; the row limit alone does not, since rows can be wide
_PIECE_BYTES = 2**18


@router.post(
    "",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The rows. `X-Keyhole-Truncated: true` if a row limit cut them.",
            "content": {media_type: {} for media_type in formats.MEDIA_TYPES.values()},
        }
    },
)
def run_sql(
    body: SqlRequest,
    caller: Reader,
    pool: Pool,
    settings: ServerSettings,
    format: Annotated[formats.Format, Query(description="of the answer")] = "json",
) -> StreamingResponse:
    """Run one SQL statement as `analyst`, read-only, within the server's time and row limits.

    The answer is complete before the first byte is sent: a statement that fails after a thousand rows is an error and
    not a short table, and a slow reader keeps no database session open.
    """
    if settings.analyst_url is None:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE, "This API has no analyst connection.", "Set KEYHOLE_ANALYST_URL for the API."
        )
    limit = min(body.limit or settings.sql_row_limit, settings.sql_row_limit)
    with analyst.run(
        settings.analyst_url.get_secret_value(), pool.connection, body.sql, limit, settings.sql_timeout_s
    ) as answer:
        file = _spooled(formats.encoded(format, answer.schema, answer, lambda: answer.truncated))
    return StreamingResponse(
        _pieces(file),
        media_type=formats.MEDIA_TYPES[format],
        headers={TRUNCATED_HEADER: "true" if answer.truncated else "false"},
    )


def _spooled(pieces: Iterator[bytes]) -> IO[bytes]:
    """All pieces in a temporary file, read from its start; raises KeyholeError (sql_limit) for too many bytes."""
    file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115  # closed by _pieces, after it was sent
    try:
        for piece in pieces:
            if file.tell() + len(piece) > _ANSWER_BYTES:
                raise KeyholeError(
                    ErrorCode.SQL_LIMIT,
                    f"The answer is larger than {_ANSWER_BYTES // 2**20} MB.",
                    "Select fewer rows or columns, or take whole tables with: keyhole export",
                )
            file.write(piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
