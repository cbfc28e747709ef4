"""Connections of the API: one pool per process, one connection per request."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.connection import open_pool
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


def pool_of(request: Request) -> ConnectionPool[Connection[Any]]:
    return request.app.state.pool


def settings_of(request: Request) -> Settings:
    return request.app.state.settings


def connection(pool: Annotated[ConnectionPool[Connection[Any]], Depends(pool_of)]) -> Iterator[Connection[Any]]:
    """A connection in autocommit for the length of a request; routes open transactions where they write."""
    with pool.connection() as conn:
        yield conn


Pool = Annotated[ConnectionPool[Connection[Any]], Depends(pool_of)]
Database = Annotated[Connection[Any], Depends(connection)]
ServerSettings = Annotated[Settings, Depends(settings_of)]
