"""An attempt's dealings with the database: each in a transaction of its own, on a connection that mends.

Both sides of an attempt use it: the supervisor in the worker and the child. While the database is away they wait and
try again; what they then find in the rows says whether they may go on.
"""

import time
from collections.abc import Callable
from copy import copy
from typing import TypeVar

import psycopg
import structlog
from psycopg import Connection

from db.connection import connect

log = structlog.get_logger()
T = TypeVar("T")

_NOT_A_LOST_CONNECTION = (psycopg.errors.QueryCanceled, psycopg.errors.DiskFull, psycopg.errors.OutOfMemory)
_IDLE_IN_TRANSACTION_S = 30  # the longest pause is that for the texts of a new vocabulary, some seconds


class Ledger:
    """One connection to the job rows. ``transact`` runs a function in a transaction and outlives database restarts.

    A function that ran into a lost connection or a deadlock is called again, so it must be one that may be: claims and
    finishes are, because their tokens say whether they happened.
    """

    def __init__(self, url: str, patience_s: float, name: str = "keyhole worker") -> None:
        self._url = url
        self._patience_s = patience_s
        self._options = {
            "application_name": name,
            # a process that is stopped in the middle must not keep others from the row it has locked
            "options": f"-c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION_S}s",
        }
        self._conn: Connection | None = None

    def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
        """Run ``function(connection)`` in a transaction; raises psycopg.OperationalError once patience is over."""
        give_up = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                if self._conn is None or self._conn.closed:
                    self._conn = connect(self._url, **self._options)
                with self._conn.transaction():
                    return function(self._conn)
            except psycopg.errors.DeadlockDetected:  # the server has let another one go on; it is this one's turn now
                continue
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if isinstance(error, _NOT_A_LOST_CONNECTION):
                    raise
                self.close()
                if time.monotonic() > give_up:
                    raise
                log.warning("database lost, trying again", error=str(error).strip())
                time.sleep(0.5)

    def another(self) -> "Ledger":
        """A second one like it, with a connection of its own."""
        ledger = copy(self)
        ledger._conn = None
        return ledger

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
