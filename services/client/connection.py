"""How the client reaches the API: address and token, requests, and problems as exceptions.

KeyholeError            what the API refused; has its code, message and hint
└── Unreachable         nobody answered, or nobody who could
"""

import json as json_module
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import httpx

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import settings

_TRIES = 4  # of a request that may be repeated; about four seconds in all
_RIGHT = "Is KEYHOLE_API_URL right?"
_RETRIED_STATUS = (502, 503, 504)


class Unreachable(KeyholeError):
    """The API does not answer, or says that it cannot work now."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, hint)


class Connection:
    """Requests to one API with one token."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.url, self._token = find_api(url, token)
        if self._token and not re.fullmatch("[!-~]+", self._token):
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                "The token has characters that no token has.",
                "Check KEYHOLE_TOKEN for line breaks, spaces and letters beyond ASCII.",
            )
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=5.0))
        except httpx.InvalidURL as error:
            raise _no_address(self.url) from error

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, *, repeatable: bool | None = None, **options: Any) -> httpx.Response:
        """Send a request and return the answer; raises KeyholeError for a problem, Unreachable for none.

        Reads, and writes that are ``repeatable``, are tried again after a lost connection or a 503.
        """
        tries = _TRIES if (repeatable if repeatable is not None else method == "GET") else 1
        prepared = self._prepared(method, path, **options)
        for left in reversed(range(tries)):
            try:
                response = self._http.send(prepared)
            except httpx.LocalProtocolError as error:
                raise _unsendable(error) from error
            except httpx.TransportError as error:
                if left == 0:
                    raise self._unreachable(error) from error
            else:
                if response.status_code not in _RETRIED_STATUS or left == 0:
                    raise_for_problem(response)
                    _require_json(response)
                    return response
            time.sleep(0.3 * 2 ** (tries - 1 - left))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, method: str, path: str, *, read_timeout_s: float = 300.0, **options: Any
    ) -> Iterator[httpx.Response]:
        """A response whose body is read piece by piece; errors as in ``request``, also while it is read."""
        timeout = httpx.Timeout(30.0, connect=5.0, read=read_timeout_s)
        prepared = self._prepared(method, path, timeout=timeout, **options)
        try:
            with closing(self._http.send(prepared, stream=True)) as response:
                if not response.is_success:
                    response.read()
                    raise_for_problem(response)
                yield response
        except httpx.LocalProtocolError as error:
            raise _unsendable(error) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _prepared(self, method: str, path: str, *, json: Any = None, **options: Any) -> httpx.Request:
        """The request in bytes; raises KeyholeError (invalid_request) for values that have none."""
        try:
            if json is not None:
                options["content"] = json_module.dumps(json, allow_nan=False, ensure_ascii=False).encode()
                options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
            return self._http.build_request(method, path, **options)
        except (TypeError, ValueError, RecursionError) as error:  # NaN, half of a surrogate pair, an object of no JSON
            raise _unsendable(error, json) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        what = "took too long to answer" if isinstance(error, httpx.TimeoutException) else "does not answer"
        return Unreachable(
            f"The API at {self.url} {what} ({type(error).__name__}).",
            "Is it up? Look with `keyhole status`; start the embedded stack with `keyhole up`.",
        )


def find_api(url: str | None = None, token: str | None = None) -> tuple[str, str | None]:
    """(address, token): the arguments, else KEYHOLE_API_URL and KEYHOLE_TOKEN, else the running embedded stack.

    A token found for the embedded stack is never sent anywhere else.
    """
    configured = settings()
    url = url or configured.api_url
    token = token or (configured.token.get_secret_value() if configured.token else None)
    if url is None:
        from services.local import stack_file  # here: only those who have no address need the stack

        stack = stack_file.read(configured.home)
        if stack is None:
            raise Unreachable(
                f"No API is known: KEYHOLE_API_URL is not set and no stack is up in {configured.home}.",
                "Start one with `keyhole up`, or set KEYHOLE_API_URL and KEYHOLE_TOKEN.",
            )
        url, token = stack.api_url, token or stack.token
    if not url.startswith(("http://", "https://")):
        raise _no_address(url)
    return url.rstrip("/"), token.strip() if token else None  # a token out of a file ends in a newline


def _no_address(url: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.INVALID_REQUEST,
        f"{url!r} is not the address of an API.",
        "It reads http://HOST:PORT or https://HOST:PORT.",
    )


def _not_finite(value: Any, name: str = "") -> KeyholeError | None:
    """What to tell of the first number of the body that is NaN or infinite, which JSON has not."""
    if isinstance(value, float) and not math.isfinite(value):
        return KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{name or 'The body'} is {value}; it must be a finite number.",
            "Fields and their ranges: keyhole kinds KIND",
        )
    fields = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    found = (_not_finite(each, f"{name}.{field}" if name else str(field)) for field, each in fields)
    return next(filter(None, found), None)


def _unsendable(error: Exception, body: Any = None) -> KeyholeError:
    """For what cannot be written into a request; the error's own words name the value but never the token."""
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
        character = error.object[error.start : error.end]
        return KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"The request has a character that cannot be sent: {character[:10]!r}.",
            "Write it in valid UTF-8.",
        )
    if isinstance(error, UnicodeEncodeError | httpx.LocalProtocolError):
        return KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "The idempotency key has characters that no header may have.",
            "Use printable ASCII.",
        )
    if "Out of range float" in str(error) and (told := _not_finite(body)):
        return told
    return KeyholeError(
        ErrorCode.INVALID_REQUEST,
        f"A value of the request cannot be written as JSON: {error}.",
        "Values are finite numbers, texts, true, false, lists and dictionaries.",
    )


def _require_json(response: httpx.Response) -> None:
    """Every answer that is not streamed is JSON or empty; another server's page is told as what it is."""
    kind = response.headers.get("Content-Type", "")
    if response.content and not kind.startswith("application/json"):
        raise KeyholeError(
            ErrorCode.UNEXPECTED, f"{response.request.url} answered {kind[:60] or 'something'}, not JSON.", _RIGHT
        )


def raise_for_problem(response: httpx.Response) -> None:
    """Raise the problem that a response carries as KeyholeError; nothing happens to other responses."""
    if response.is_success:
        return
    try:
        body = response.json()
        code, detail, hint = str(body["code"]), str(body["detail"]), str(body.get("hint", ""))
    except (ValueError, KeyError, TypeError):  # not from Keyhole: a proxy in between, or another server
        code, detail, hint = "", f"{response.request.url} answered {response.status_code}.", _RIGHT
    if response.status_code in _RETRIED_STATUS:
        raise Unreachable(detail, hint or "Try again in a moment; look with `keyhole status`.")
    known = next((each for each in ErrorCode if each == code), None)
    if known is None:
        raise KeyholeError(ErrorCode.UNEXPECTED, f"{detail} {f'(code {code})' if code else ''}".strip(), hint)
    if known is ErrorCode.INTERNAL:
        hint = f"{hint} Request id: {response.headers.get('X-Request-Id', 'unknown')}."
    raise KeyholeError(known, detail, hint)
