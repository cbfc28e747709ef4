"""What the routes of one process share: settings, the turns of resolving, and connections, one pool for all.

A connection is held while the database is asked and not while anything else is: whatever may be slow, hub, broker or
the client itself, gives it back first.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from psycopg import Connection, Error
from psycopg_pool import ConnectionPool

from db.connection import connect, no_connection_left, open_pool
from services.api.resolving import Turns
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings


def open_pool_of(settings: Settings) -> ConnectionPool[Connection[Any]]:
    """A pool that connects in the background: the API starts, and answers 503, while the database is away."""
    if settings.database_url is None:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            "The API has no database.",
            "Set KEYHOLE_DATABASE_URL, or let `keyhole up` start the embedded stack.",
        )
    pool = open_pool(
        settings.database_url.get_secret_value(), max_size=20, application_name="keyhole-api", connect_timeout=5
    )
    pool.timeout = 5.0  # a request that waits longer for a connection is answered 503
    return pool


def answers(settings: Settings) -> bool:
    """Whether the database answers a connection of its own, whatever became of the pool's."""
    if settings.database_url is None:
        return False
    try:
        with connect(settings.database_url.get_secret_value(), application_name="keyhole-api", connect_timeout=2):
            return True
    except Error as error:
        return no_connection_left(error)


def pool_of(request: Request) -> ConnectionPool[Connection[Any]]:
    return request.app.state.pool


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


def turns_of(request: Request) -> Turns:
    return request.app.state.turns


def connection(pool: Annotated[ConnectionPool[Connection[Any]], Depends(pool_of)]) -> Iterator[Connection[Any]]:
    """A connection in autocommit for the length of a request; routes open transactions where they write."""
    with pool.connection() as conn:
        yield conn


Pool = Annotated[ConnectionPool[Connection[Any]], Depends(pool_of)]
Database = Annotated[Connection[Any], Depends(connection)]
ServerSettings = Annotated[Settings, Depends(settings_of)]
ResolvingTurns = Annotated[Turns, Depends(turns_of)]
