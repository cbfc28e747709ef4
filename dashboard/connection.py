"""The dashboard's way to the database: the read-only role ``analyst``, short statements, errors in plain words.

Reads KEYHOLE_ANALYST_URL (set by whoever starts the dashboard) and nothing else: the owner's URL and API tokens are
none of the dashboard's business.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import streamlit as st
from psycopg_pool import ConnectionPool, PoolTimeout

from db.connection import connect, no_connection_left, open_pool
from services.contracts.errors import ErrorCode, KeyholeError

STATEMENT_TIMEOUT_S = 10  # a page that waits longer is broken; the role's own limit is higher
CONNECT_WAIT_S = 4.0
POOL_SIZE = 4  # the analyst role's connection limit is shared with people who run SQL


def analyst_url() -> str:
    """The analyst connection; raises KeyholeError (unavailable) where none is configured."""
    url = os.environ.get("KEYHOLE_ANALYST_URL")
    if not url:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            "The dashboard was started without KEYHOLE_ANALYST_URL.",
            "Start it with `keyhole up`, or set KEYHOLE_ANALYST_URL to the connection of the role analyst.",
        )
    return url


@st.cache_resource(show_spinner=False, max_entries=4, on_release=ConnectionPool.close)
def _pool(url: str) -> ConnectionPool:
    return open_pool(
        url,
        min_size=0,
        max_size=POOL_SIZE,
        application_name="keyhole dashboard",
        connect_timeout=3,
        options=f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c default_transaction_read_only=on",
    )


@contextmanager
def reading() -> Iterator[psycopg.Connection]:
    """A connection for a page's queries; raises KeyholeError (unavailable or sql_limit) with what to do."""
    try:
        with _pool(analyst_url()).connection(timeout=CONNECT_WAIT_S) as connection:
            yield connection
    except psycopg.errors.QueryCanceled as error:
        raise KeyholeError(
            ErrorCode.SQL_LIMIT,
            f"The database needed longer than {STATEMENT_TIMEOUT_S} s for this page.",
            "Try again; if it persists, the database is overloaded or the job's rows are very many.",
        ) from error
    except psycopg.errors.UndefinedTable as error:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            "The database has no Keyhole schema, or one of another version.",
            "Run the migrations of this version of Keyhole (`keyhole up` does so by itself).",
        ) from error
    except psycopg.DataError as error:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "The address or a field of this page has a value that the database cannot hold.",
            "Clear the filters, or open the page anew from the bar at the top.",
        ) from error
    except (psycopg.OperationalError, PoolTimeout) as error:
        if _all_taken(error):
            raise KeyholeError(
                ErrorCode.UNAVAILABLE,
                "All connections of the role analyst are in use.",
                "Sessions that only idle are ended within seconds, statements at their time limit. "
                "This page tries again by itself.",
            ) from error
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            "The database does not answer.",
            "`keyhole status` tells whether it runs, `keyhole up` starts it. This page tries again by itself.",
        ) from error


def _all_taken(error: psycopg.OperationalError) -> bool:
    """The pool only says that it got no connection in time, so the database is asked once more for the reason."""
    if isinstance(error, PoolTimeout):
        try:
            connect(analyst_url(), connect_timeout=3).close()
        except psycopg.OperationalError as reason:
            return no_connection_left(reason)
        return False
    return no_connection_left(error)
