"""What happens around every request: an id, a limit on the body, one line in the log, an answer even to a defect."""

import re
import time
import uuid

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api import problems
from services.contracts.errors import ErrorCode

MAX_BODY_BYTES = 1_000_000  # the largest honest body is an SQL text of 100,000 characters
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}")
_QUIET = ("/v1/health", "/v1/health/ready", "/metrics")  # asked every few seconds; logged only when they fail

_log = structlog.get_logger("keyhole.api")


class CutOff(Exception):
    """An answer that has begun cannot be ended as promised; whoever raises it has told the log why."""


class RequestContext:
    """ASGI middleware, written plainly: Starlette's BaseHTTPMiddleware stands in the way of streams."""

    def __init__(self, app: ASGIApp, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["keyhole.request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        length = headers.get(b"content-length", b"0")
        try:
            if length.isdigit() and int(length) > self._max_body_bytes:
                answer = problems.problem(
                    request_id,
                    ErrorCode.INVALID_REQUEST,
                    f"The body has {int(length):,} bytes; at most {self._max_body_bytes:,} are read.",
                    hint=problems.HINT_OF_STATUS[413],
                    status=413,
                )
                await answer(scope, receive, send_with_id)
            else:
                await self._app(scope, self._counted(receive), send_with_id)
        except CutOff:
            pass  # the answer stays unfinished: the server closes the connection, and the client sees it
        except Exception as error:
            _log.error("defect", method=scope["method"], path=scope["path"], exc_info=error)
            if status:  # the answer has begun: cut it off, so that the client sees that it is not whole
                raise
            await problems.defect(request_id)(scope, receive, send_with_id)
        finally:
            if scope["path"] not in _QUIET or status >= 400:
                _log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    duration_ms=round((time.monotonic() - started) * 1000, 1),
                )

    def _counted(self, receive: Receive) -> Receive:
        """The same messages, until they carry more bytes than allowed: a chunked body tells no length beforehand."""
        total = 0

        async def limited() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._max_body_bytes:
                raise HTTPException(413, f"The body is larger than {self._max_body_bytes:,} bytes.")
            return message

        return limited
