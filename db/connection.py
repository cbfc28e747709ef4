"""Connections to Postgres: always in autocommit, so that every transaction is an explicit ``conn.transaction()``."""

from typing import Any

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool

# A peer that vanished without a word is noticed after 30 + 3 * 10 seconds, not after two hours.
_DEFAULTS: dict[str, Any] = {
    "application_name": "keyhole",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def connect(url: str, **options: Any) -> Connection:
    """Connect in autocommit mode; raises psycopg.OperationalError where nobody answers."""
    merged: dict[str, Any] = {"autocommit": True} | _DEFAULTS | options
    return psycopg.connect(url, **merged)


def no_connection_left(error: psycopg.Error) -> bool:
    """Whether the server refused a connection for their number: libpq passes on its words without its code."""
    return "too many c" in str(error) or "connection slots are reserved" in str(error)


def open_pool(
    url: str, *, min_size: int = 1, max_size: int = 10, **options: Any
) -> ConnectionPool[Connection[TupleRow]]:
    """An open pool of such connections; each is checked before it is lent, so a restart of Postgres costs no error."""
    return ConnectionPool(
        url,
        kwargs={"autocommit": True} | _DEFAULTS | options,
        min_size=min_size,
        max_size=max_size,
        check=ConnectionPool.check_connection,
        open=True,
    )
