"""Analysts' SQL: one statement, read-only, streamed as Arrow batches, ended from outside at its limits.

GRANTs decide what a statement may read (db/roles.sql). What they cannot bound is bounded here: a second session, the
owner's, cancels and then terminates the backend at the time limit, whatever the statement set for itself; rows beyond
the limit are not fetched; and a row too large for this process is not received to its end.
"""

import array
import fcntl
import select
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Self

import psycopg
import pyarrow as pa
import structlog
from psycopg import Connection, pq
from psycopg.adapt import Transformer

from db import analyst_sessions, analyst_types
from db.analyst_errors import refusal
from db.connection import connect, no_connection_left
from db.roles import ROLE
from services.contracts.errors import ErrorCode, KeyholeError

_log = structlog.get_logger("keyhole.sql")

OwnerConnections = Callable[[], AbstractContextManager[Connection]]

_CHUNK_ROWS = 500
# Received for one chunk of rows. A lower estimate is what can be had: libpq may read more than the kernel held when
# it was asked. Measured, a value of 900 MB is given up after 60 to 120 MB, and on a busy machine one of 400 MB may come
# whole; it is refused then all the same.
_CHUNK_BYTES = 24 * 2**20
_CANCEL_GRACE_S = 2.0  # between cancelling and terminating
_ROOM_WAIT_S = 2.0  # for a connection, where all are taken
_TERMINAL = {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY, pq.ExecStatus.TUPLES_OK}


class Answer:
    """The rows of a statement: ``schema`` at once, batches by iterating; close it or exhaust it.

    ``truncated`` tells, after the last batch, whether rows beyond the limit were cut off. Iterating raises
    KeyholeError when the statement fails or meets its time limit after its first rows.
    """

    def __init__(self, session: "_Session", row_limit: int) -> None:
        self.truncated = False
        self._session = session
        self._row_limit = row_limit
        try:
            self._first = session.next_result()
            self.schema = analyst_types.schema(self._first)
        except BaseException:
            session.close()
            raise

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        result: pq.abc.PGresult | None = self._first
        left = self._row_limit
        try:
            while result is not None and result.ntuples:
                rows = min(result.ntuples, left)
                if rows:
                    yield self._session.batch(result, rows, self.schema)
                self.truncated = result.ntuples > left
                if self.truncated:
                    return
                left -= rows
                result = self._session.next_result() if result.status not in _TERMINAL else None
        finally:
            self.close()

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(analyst_url: str, owner: OwnerConnections, statement: str, row_limit: int, timeout_s: float) -> Answer:
    """Run one statement as the analyst; returns once its first rows are there.

    ``owner`` lends a connection of the owner role, asked for only when the time limit is met or all connections of
    analysts are taken.

    Raises KeyholeError: sql_refused with what PostgreSQL said, sql_limit at a limit, unavailable when no connection
    is to be had.
    """
    if "\x00" in statement or any("\ud800" <= character <= "\udfff" for character in statement):
        raise KeyholeError(ErrorCode.SQL_REFUSED, "The statement has characters that no SQL can have.", "Remove them.")
    session = _Session(analyst_url, owner, timeout_s)
    session.send(statement)
    return Answer(session, row_limit)


class _Session:
    """One analyst connection with one statement, and the thread that ends it at the time limit."""

    def __init__(self, url: str, owner: OwnerConnections, timeout_s: float) -> None:
        self._owner = owner
        self._timeout_s = timeout_s
        self._done = threading.Event()
        self._overdue = False
        self._conn = _connected(url, owner, timeout_s)
        try:
            analyst_types.register(self._conn)
            row = self._conn.execute(
                "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            ).fetchone()
            assert row is not None
            self._backend: tuple[int, datetime] = row
            # the timeout is a second barrier, should the watch fail
            self._conn.execute("BEGIN TRANSACTION READ ONLY; SET LOCAL TIME ZONE 'UTC'")
            self._conn.execute("SELECT set_config('statement_timeout', %s, true)", (f"{timeout_s + 5:.3f}s",))
        except psycopg.Error as error:
            self._conn.close()
            raise refusal(error) from error
        self._watch = threading.Thread(target=self._end_when_overdue, name="keyhole-sql-watch", daemon=True)
        self._watch.start()

    def send(self, statement: str) -> None:
        """By the extended protocol, which takes one statement and no more."""
        connection = self._conn.pgconn
        try:
            connection.send_query_params(statement.encode(), None)
            connection.set_chunked_rows_mode(_CHUNK_ROWS)
            while connection.flush():
                select.select([connection.socket], [connection.socket], [])
                connection.consume_input()
        except psycopg.Error as error:
            self.close()
            raise self._explained(error) from error

    def next_result(self) -> pq.abc.PGresult:
        """The next rows, or the empty result that ends them; raises KeyholeError."""
        connection = self._conn.pgconn
        received = 0
        try:
            while connection.is_busy():
                select.select([connection.socket], [], [])
                received += _waiting_bytes(connection.socket)
                if received > _CHUNK_BYTES:
                    raise _too_large()
                connection.consume_input()
            result = connection.get_result()
        except psycopg.Error as error:
            raise self._explained(error) from error
        assert result is not None
        status = pq.ExecStatus(result.status)
        if status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.NONFATAL_ERROR):
            raise self._explained(psycopg.errors.error_from_result(result))
        if status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH):
            raise KeyholeError(
                ErrorCode.SQL_REFUSED, "COPY has no rows to show here.", "Use SELECT; files come from: keyhole export"
            )
        return result

    def batch(self, result: pq.abc.PGresult, rows: int, schema: pa.Schema) -> pa.RecordBatch:
        transformer = Transformer(self._conn)
        transformer.set_pgresult(result)
        try:
            loaded = transformer.load_rows(0, rows, tuple)
            columns = zip(*loaded, strict=True) if result.nfields else ()
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        except (psycopg.Error, pa.ArrowException, ValueError, OverflowError) as error:
            raise KeyholeError(
                ErrorCode.SQL_REFUSED,
                f"A value cannot be shown: {error}",
                "Cast the column to text, for example with ::text.",
            ) from error
        # as text a number can take a quarter of its bytes here; more came while libpq read faster than was counted
        if sum(each.nbytes for each in arrays) > 4 * _CHUNK_BYTES:
            raise _too_large()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        """End the session; a statement that still runs is cancelled, since its server would not notice."""
        if self._done.is_set():
            return
        self._done.set()
        if not self._conn.closed and self._conn.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            with suppress(psycopg.Error):
                self._conn.cancel_safe(timeout=5)
        self._conn.close()

    def _end_when_overdue(self) -> None:
        if self._done.wait(self._timeout_s):
            return
        self._overdue = True
        for function in ("pg_cancel_backend", "pg_terminate_backend"):
            # the start time too: a pid can have a new owner
            with suppress(psycopg.Error), self._owner() as conn:
                conn.execute(
                    f"SELECT {function}(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",  # type: ignore[arg-type]  # noqa: S608  # one of two literals
                    self._backend,
                )
            if self._done.wait(_CANCEL_GRACE_S):
                return

    def _explained(self, error: psycopg.Error) -> KeyholeError:
        if self._overdue or isinstance(error, psycopg.errors.QueryCanceled):
            return KeyholeError(
                ErrorCode.SQL_LIMIT,
                f"The statement ran into the time limit of {self._timeout_s:g} s.",
                "Ask for one job_id, use a summary view, or export the tables and work on the files.",
            )
        return refusal(error)


def _connected(url: str, owner: OwnerConnections, timeout_s: float) -> Connection:
    """A connection as the analyst; where all are taken, one that idles is ended for it.

    What libpq says names hosts and sockets, so it goes to the log and not into the answer.
    """
    deadline = time.monotonic() + _ROOM_WAIT_S
    while True:
        try:
            return connect(url, application_name="keyhole sql", client_encoding="UTF8")
        except psycopg.OperationalError as error:
            full = no_connection_left(error)
            with suppress(psycopg.Error), owner() as conn:
                full |= analyst_sessions.make_room(conn)
            if full and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            _log.warning("no connection as analyst", error=str(error).strip())
            if full:
                raise KeyholeError(
                    ErrorCode.UNAVAILABLE,
                    f"All connections of the role {ROLE} are busy.",
                    f"Try again: a statement ends within {timeout_s:g} s.",
                ) from error
            raise KeyholeError(
                ErrorCode.UNAVAILABLE,
                f"The database gives no connection to the role {ROLE}.",
                "Try again; if it persists, the API's log says why; `keyhole migrate` puts the role back.",
            ) from error


def _too_large() -> KeyholeError:
    return KeyholeError(
        ErrorCode.SQL_LIMIT,
        f"The rows are too large: more than {_CHUNK_BYTES // 2**20} MB for {_CHUNK_ROWS} rows.",
        "Select fewer columns, or shorten long texts with left().",
    )


def _waiting_bytes(descriptor: int) -> int:
    """Bytes that the kernel holds for this socket."""
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
