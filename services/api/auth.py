"""Who asks: bearer tokens, their scopes, and the addresses the API may listen on.

A token reads ``kh_`` and 43 URL-safe characters (256 random bits). Only its SHA-256 is stored: a copy of the database
opens nothing, and finding a row by that hash tells an attacker's clock nothing about the token.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import Depends, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from psycopg import Connection

from db.repositories import api_tokens
from services.api.database import Pool
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import SCOPE_IMPLIES, Scope

_bearer = HTTPBearer(auto_error=False, description="A token of Keyhole: `keyhole token create NAME`")
_HINT = "Send `Authorization: Bearer kh_…`; make a token with: keyhole token create NAME"


@dataclass(frozen=True)
class Caller:
    token_id: int
    name: str
    scope: Scope


def caller(pool: Pool, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> Caller:
    """The owner of the request's token; raises KeyholeError (unauthorized).

    Takes a connection of its own and gives it back at once: the request may go on to stream for hours.
    """
    if credentials is None:
        raise KeyholeError(ErrorCode.UNAUTHORIZED, "The request carries no token.", _HINT)
    given = hashlib.sha256(credentials.credentials.encode()).digest()
    with pool.connection() as conn:
        stored = api_tokens.usable(conn, given)
    if stored is None or not hmac.compare_digest(stored.sha256, given):
        raise KeyholeError(ErrorCode.UNAUTHORIZED, "The token is unknown, expired or revoked.", _HINT)
    structlog.contextvars.bind_contextvars(token=stored.name)
    return Caller(stored.id, stored.name, Scope(stored.scope))


def _requires(scope: Scope) -> Callable[[Caller], Caller]:
    def allowed(who: Annotated[Caller, Depends(caller)]) -> Caller:
        if scope not in SCOPE_IMPLIES[who.scope]:
            raise KeyholeError(
                ErrorCode.FORBIDDEN,
                f"This needs the scope {scope}; the token {who.name!r} has {who.scope}.",
                f"Ask an admin for one: keyhole token create NAME --scope {scope}",
            )
        return who

    return allowed


Reader = Annotated[Caller, Depends(_requires(Scope.READ))]
Submitter = Annotated[Caller, Depends(_requires(Scope.SUBMIT))]
Admin = Annotated[Caller, Depends(_requires(Scope.ADMIN))]


def check_bind_address(host: str, conn: Connection[Any]) -> None:
    """Raise KeyholeError (forbidden) for an address beyond this machine while nobody has a token.

    Every route but health needs a token, yet a server that nobody can have configured has no business being reachable.
    """
    if _is_loopback(host) or api_tokens.any_usable(conn):
        return
    raise KeyholeError(
        ErrorCode.FORBIDDEN,
        f"The API does not listen on {host} while there are no tokens.",
        "Make one first: keyhole token create NAME --scope admin, or listen on 127.0.0.1.",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
