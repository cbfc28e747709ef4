"""How the client reaches the API: address and token, requests, and problems as exceptions.

KeyholeError            what the API refused; has its code, message and hint
└── Unreachable         nobody answered, or nobody who could
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import settings

_TRIES = 4  # of a request that may be repeated; about four seconds in all
_RETRIED_STATUS = (502, 503, 504)


class Unreachable(KeyholeError):
    """The API does not answer, or says that it cannot work now."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, hint)


class Connection:
    """Requests to one API with one token."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.url, self._token = find_api(url, token)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=5.0))

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, *, repeatable: bool | None = None, **options: Any) -> httpx.Response:
        """Send a request and return the answer; raises KeyholeError for a problem, Unreachable for none.

        Reads, and writes that are ``repeatable``, are tried again after a lost connection or a 503.
        """
        tries = _TRIES if (repeatable if repeatable is not None else method == "GET") else 1
        for left in reversed(range(tries)):
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if left == 0:
                    raise self._unreachable(error) from error
            else:
                if response.status_code not in _RETRIED_STATUS or left == 0:
                    raise_for_problem(response)
                    return response
            time.sleep(0.3 * 2 ** (tries - 1 - left))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(
        self, method: str, path: str, *, read_timeout_s: float = 300.0, **options: Any
    ) -> Iterator[httpx.Response]:
        """A response whose body is read piece by piece; errors as in ``request``, also while it is read."""
        timeout = httpx.Timeout(30.0, connect=5.0, read=read_timeout_s)
        try:
            with self._http.stream(method, path, timeout=timeout, **options) as response:
                if response.is_error:
                    response.read()
                    raise_for_problem(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

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
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST, f"{url!r} is not the address of an API.", "It begins with http:// or https://."
        )
    return url.rstrip("/"), token.strip() if token else None  # a token out of a file ends in a newline


def raise_for_problem(response: httpx.Response) -> None:
    """Raise the problem that a response carries as KeyholeError; nothing happens to other responses."""
    if not response.is_error:
        return
    try:
        body = response.json()
        code, detail, hint = str(body["code"]), str(body["detail"]), str(body.get("hint", ""))
    except (ValueError, KeyError, TypeError):  # not from Keyhole: a proxy in between, or another server
        code, detail, hint = "", f"{response.request.url} answered {response.status_code}.", "Is KEYHOLE_API_URL right?"
    if response.status_code in _RETRIED_STATUS:
        raise Unreachable(detail, hint or "Try again in a moment; look with `keyhole status`.")
    known = next((each for each in ErrorCode if each == code), None)
    if known is None:
        raise KeyholeError(ErrorCode.UNEXPECTED, f"{detail} {f'(code {code})' if code else ''}".strip(), hint)
    if known is ErrorCode.INTERNAL:
        hint = f"{hint} Request id: {response.headers.get('X-Request-Id', 'unknown')}."
    raise KeyholeError(known, detail, hint)
