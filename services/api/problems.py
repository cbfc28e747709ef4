"""Every error of the API as an RFC 9457 problem document (application/problem+json)."""

from http import HTTPStatus
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests
from starlette.exceptions import HTTPException
from starlette.routing import Match

from services.api.database import answers
from services.api.validation_errors import described, reason_unreadable
from services.contracts.errors import RULES, ErrorCode, KeyholeError
from services.contracts.jobs import Problem

MEDIA_TYPE = "application/problem+json"
# in OpenAPI: what any route may answer besides its own
RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"description": "A problem", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}},
}

_log = structlog.get_logger("keyhole.api")

_CODE_OF_STATUS = {
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    409: ErrorCode.CONFLICT,
    503: ErrorCode.UNAVAILABLE,
}
HINT_OF_STATUS = {
    404: "The routes are listed at /docs.",
    405: "The routes and their methods are listed at /docs.",
    413: "The longest honest body is an SQL statement of 100,000 characters; larger data belong into files.",
}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PROBES = anyio.CapacityLimiter(2)  # threads that look whether the database answers; the others may all be waiting


def problem(
    request_id: str,
    code: ErrorCode,
    detail: str,
    *,
    hint: str = "",
    status: int | None = None,
    errors: list[dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """The response for one error; the status is the code's own unless given."""
    status = status or RULES[code].http_status
    headers = dict(headers or {})
    if status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="keyhole"')
    if status == 503:
        headers.setdefault("Retry-After", "5")
    body = Problem(
        type=f"about:blank#{code}",
        title=RULES[code].meaning if status == RULES[code].http_status else HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        request_id=request_id,
        hint=hint,
        errors=errors or [],
    )
    return JSONResponse(body.model_dump(mode="json"), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every exception that is foreseen with a problem; request_context answers the others."""
    app.add_exception_handler(KeyholeError, _keyhole_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(psycopg.DataError, _bad_value)
    for missing in (
        psycopg.errors.UndefinedTable,
        psycopg.errors.UndefinedColumn,
        psycopg.errors.InvalidSchemaName,
    ):
        app.add_exception_handler(missing, _other_schema)
    for lost in (psycopg.OperationalError, PoolClosed):
        app.add_exception_handler(lost, _database_down)
    for crowded in (PoolTimeout, TooManyRequests):
        app.add_exception_handler(crowded, _no_connection)


def request_id(request: Request) -> str:
    return request.scope.get("keyhole.request_id", "none")


async def _keyhole_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, KeyholeError)
    return problem(request_id(request), error.code, error.message, hint=error.hint)


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    if isinstance(error.body, bytes):  # FastAPI parses nothing that is not called JSON
        kind = request.headers.get("content-type")
        return problem(
            request_id(request),
            ErrorCode.INVALID_REQUEST,
            f"The body came as {kind[:100]!r}, not as JSON." if kind else "The body came without a Content-Type.",
            hint="Send it with the header Content-Type: application/json.",
            status=415,
        )
    errors = described(error.errors(), error.body)
    unknown_kind = next(
        (each for each in errors if (each["type"], each["where"]) == ("union_tag_invalid", "kind")), None
    )
    if unknown_kind:
        return problem(
            request_id(request),
            ErrorCode.UNKNOWN_KIND,
            unknown_kind["message"],
            hint=unknown_kind["hint"],
            errors=errors,
        )
    detail = "; ".join(f"{item['where']}: {item['message']}" for item in errors[:3])
    if len(errors) > 3:
        detail += f"; and {len(errors) - 3} more"
    general = "Fields and their ranges: `keyhole kinds KIND`, or GET /v1/kinds and /docs."
    hint = next((item["hint"] for item in errors if item["hint"]), general)
    return problem(request_id(request), ErrorCode.INVALID_REQUEST, detail, hint=hint, errors=errors)


async def _http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
    where = f"{request.method} {request.url.path}"
    detail, hint = str(error.detail), HINT_OF_STATUS.get(error.status_code, "What each route takes is told at /docs.")
    headers = dict(error.headers or {})
    if error.status_code == 404:
        detail = f"Nothing is served at {where}."
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request)) or headers.get("Allow", "")
        detail = f"{where} is not possible; allowed: {headers['Allow']}."
    elif error.status_code == 400 and error.__cause__ is not None:  # FastAPI could not parse the body
        detail, hint = reason_unreadable(error.__cause__)
    return problem(request_id(request), code, detail, hint=hint, status=error.status_code, headers=headers)


def _allowed(request: Request) -> list[str]:
    """Methods that are served at the request's path: one path may have a route for each."""

    def served(method: str) -> bool:
        scope = {**request.scope, "method": method, "path_params": {}}
        return any(route.matches(dict(scope))[0] is Match.FULL for route in request.app.routes)

    return [method for method in _METHODS if served(method)]


async def _bad_value(request: Request, error: Exception) -> JSONResponse:
    """A value that is valid JSON but that PostgreSQL cannot hold, such as text with a NUL character."""
    return problem(
        request_id(request),
        ErrorCode.INVALID_REQUEST,
        f"The database cannot hold a value of the request: {str(error).splitlines()[0]}",
        hint="Leave out NUL and other control characters.",
    )


async def _database_down(request: Request, error: Exception) -> JSONResponse:
    _log.warning("database_unavailable", error=type(error).__name__)
    return problem(
        request_id(request),
        ErrorCode.UNAVAILABLE,
        "The database does not answer.",
        hint="Look at /v1/health/ready or run: keyhole status",
    )


async def _other_schema(request: Request, error: Exception) -> JSONResponse:
    """Tables that are not there: the database was not migrated, or is of another version."""
    _log.warning("database_of_another_version", error=str(error).splitlines()[0])
    return problem(
        request_id(request),
        ErrorCode.UNAVAILABLE,
        "The database does not have the tables of this version.",
        hint="Whoever runs the service: keyhole migrate",
    )


async def _no_connection(request: Request, error: Exception) -> JSONResponse:
    """No connection became free in time: because all are in use, or because none can be made."""
    if not await anyio.to_thread.run_sync(answers, request.app.state.settings, limiter=_PROBES):
        return await _database_down(request, error)
    _log.warning("database_busy", error=type(error).__name__)
    return problem(
        request_id(request),
        ErrorCode.UNAVAILABLE,
        "The API is busy: all of its database connections are in use.",
        hint="Try again in a moment; fewer requests at once are answered sooner.",
    )


def defect(request_id: str) -> JSONResponse:
    """The answer to an exception nobody foresaw: no internals, only the id under which the log has them."""
    return problem(
        request_id,
        ErrorCode.INTERNAL,
        "Keyhole met an error that it did not expect.",
        hint="The server's log has the traceback under this request id.",
    )
