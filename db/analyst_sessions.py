"""The sessions of the role ``analyst``, held to their limits by the owner's: time, idleness, number and memory.

Whatever a session sets for itself, or calls itself, counts for nothing here.
"""

import os
from pathlib import Path

import structlog
from psycopg import Connection, sql

from db.roles import ROLE

# Idle sessions beyond this number are ended, the longest idle first, so that the role's connections never all idle.
IDLE_KEPT = 10
IDLE_LIMIT_S = 600.0
_FRESH_S = 5.0  # a session that idles for less is between two statements
# Private memory of all analysts' sessions together; nothing in PostgreSQL bounds it, since work_mem is theirs to set.
MEMORY_BYTES = 2 * 2**30

_log = structlog.get_logger("keyhole.analysts")

# Sessions in other databases count too: the role and its connection limit are the cluster's. Without the role's rights
# the owner neither sees what the sessions do nor may end them.
_SESSIONS = sql.SQL("""
SELECT pid, backend_start, state, query_start, state_change, xact_start, coalesce(leader_pid, pid) AS leader
FROM pg_stat_activity WHERE usename = %(role)s AND pg_has_role(usename, 'USAGE') AND pid <> pg_backend_pid()
""")


def reap(conn: Connection, timeout_s: float, memory_bytes: int = MEMORY_BYTES) -> int:
    """Enforce the limits on analysts who connect by themselves; returns the number of sessions it acted on.

    A statement is cancelled at ``timeout_s`` and its session terminated 5 s later; a transaction that idles so long,
    or lasts ten times as long, is terminated: it would hold back vacuum and the merging of partitions. So are sessions
    that idle for long or are the longest idle of many, and those with the most memory when all have too much.
    """
    return _end_overdue(conn, timeout_s) + _end_idle(conn) + _end_largest(conn, memory_bytes)


def make_room(conn: Connection) -> bool:
    """Where the role has all its connections, end the longest idle one; returns whether it had them all."""
    row = conn.execute(
        sql.SQL("""
        WITH session AS ({sessions})
        SELECT (SELECT pg_terminate_backend(pid) FROM session WHERE state = 'idle' ORDER BY state_change LIMIT 1)
        FROM pg_roles WHERE rolname = %(role)s AND rolconnlimit BETWEEN 0 AND (
            SELECT count(*) FROM session WHERE pid = leader)
        """).format(sessions=_SESSIONS),
        {"role": ROLE},
    ).fetchone()
    return row is not None


def _end_overdue(conn: Connection, timeout_s: float) -> int:
    return _count(
        conn,
        sql.SQL("""
        SELECT count(*) FILTER (WHERE CASE
            WHEN overdue >= interval '5 seconds' OR state LIKE 'idle in transaction%%' OR lasting
                THEN pg_terminate_backend(pid) ELSE pg_cancel_backend(pid) END)
        FROM (
            SELECT pid, state, clock_timestamp() - make_interval(secs => %(limit)s)
                - CASE WHEN state = 'active' THEN query_start ELSE state_change END AS overdue,
                xact_start < clock_timestamp() - make_interval(secs => %(limit)s * 10) AS lasting
            FROM ({sessions}) AS session WHERE state = 'active' OR state LIKE 'idle in transaction%%'
        ) AS session
        WHERE overdue > interval '0' OR lasting
        """).format(sessions=_SESSIONS),
        limit=timeout_s,
    )


def _end_idle(conn: Connection) -> int:
    """The pool of the dashboard is not exempt: it checks a connection before it lends it, and opens another."""
    return _count(
        conn,
        sql.SQL("""
        SELECT count(*) FILTER (WHERE pg_terminate_backend(pid))
        FROM (
            SELECT pid, clock_timestamp() - state_change AS idle, row_number() OVER (ORDER BY state_change DESC) AS rank
            FROM ({sessions}) AS session WHERE state = 'idle'
        ) AS session
        WHERE idle > make_interval(secs => %(limit)s)
           OR rank > %(kept)s AND idle > make_interval(secs => %(fresh)s)
        """).format(sessions=_SESSIONS),
        limit=IDLE_LIMIT_S,
        kept=IDLE_KEPT,
        fresh=_FRESH_S,
    )


def _end_largest(conn: Connection, memory_bytes: int) -> int:
    """Only where the server's processes can be seen from here: on its own machine, by its Unix socket, on Linux."""
    if not conn.info.host.startswith("/"):
        return 0
    held: dict[int, int] = {}
    for pid, leader in conn.execute(
        sql.SQL("SELECT pid, leader FROM ({sessions}) AS session").format(sessions=_SESSIONS), {"role": ROLE}
    ).fetchall():
        held[leader] = held.get(leader, 0) + _private_bytes(pid)
    ended = 0
    excess = sum(held.values()) - memory_bytes
    for leader, size in sorted(held.items(), key=lambda item: -item[1]):
        if excess <= 0:
            break
        # looked up again: a pid can have a new owner
        ended += _count(
            conn,
            sql.SQL(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM ({sessions}) AS session "
                "WHERE pid = %(leader)s"
            ).format(sessions=_SESSIONS),
            leader=leader,
        )
        _log.warning("analyst's session ended for its memory", pid=leader, bytes=size)
        excess -= size
    return ended


def _private_bytes(pid: int) -> int:
    """Resident memory that is not shared with the server's other processes; 0 where there is no such process."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith("postgres"):
            return 0
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def _count(conn: Connection, query: sql.Composed, **parameters: float) -> int:
    row = conn.execute(query, {"role": ROLE, **parameters}).fetchone()
    assert row is not None
    return row[0]
