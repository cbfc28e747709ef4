"""An attempt's dealings with the database: each in a transaction of its own, on a connection that mends.

Both sides of an attempt use it: the supervisor in the worker and the child. While the database is away they wait and
try again; what they then find in the rows says whether they may go on.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
import structlog
from psycopg import Connection

from db.connection import connect

log = structlog.get_logger()
T = TypeVar("T")


class Ledger:
    """One connection to the job rows. ``transact`` runs a function in a transaction and outlives database restarts.

    A function that ran into a lost connection is called again, so it must be one that may be: claims and finishes
    are, because their tokens say whether they happened.
    """

    def __init__(self, url: str, patience_s: float) -> None:
        self._url = url
        self._patience_s = patience_s
        self._conn: Connection | None = None

    def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
        """Run ``function(connection)`` in a transaction; raises psycopg.OperationalError once patience is over."""
        give_up = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                if self._conn is None or self._conn.closed:
                    self._conn = connect(self._url)
                with self._conn.transaction():
                    return function(self._conn)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if isinstance(error, psycopg.errors.QueryCanceled):
                    raise
                self.close()
                if time.monotonic() > give_up:
                    raise
                log.warning("database lost, trying again", error=str(error).strip())
                time.sleep(0.5)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
