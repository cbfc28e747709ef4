"""Housekeeping of partitions: pack the jobs of small ones together, and drop the storage of deleted jobs.

Why readers never see rows missing or doubled, whatever snapshot they hold:

1. The rows are copied into a table that stands alone, and that is committed.
2. Its index is built CONCURRENTLY, which ends only when every snapshot older than the copy is gone. From then on each
   transaction that can still read would see the copied rows, so it does not matter which table it reads.
3. Under an exclusive lock on the parent the old partitions are detached and the new one attached, in one transaction.
   Statements look up partitions under their lock on the parent, hence find either all of the old ones or the new one.

Only jobs at rest are moved. Should one be retried between copy and swap, the swap sees its changed row and gives up.
Partitions are packed in tiers by size, FACTOR of a tier into one of the next, so that a row is copied at most once
per tier and the number of partitions grows with the logarithm of the jobs, and beyond the largest tier with the bytes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection, errors, sql

from db.partitions import PAGES_PER_RANGE, SCHEMA, bounds, index_key
from services.contracts.kinds import result_tables
from services.contracts.states import TERMINAL_STATES

FACTOR = 16
_FIRST_TIER_BYTES = 16 * 2**10
LARGEST_BYTES = 4 * 2**30  # of a common partition: what one rewrite after a deletion may cost
_SETTLED_S = 60.0  # a job so long at rest is not about to be retried
_SWAP_WAIT_S = 2  # for the exclusive lock: readers queue behind it so long at most
_SNAPSHOT_WAIT_S = 20  # for old snapshots: a dump can hold one for hours
_ROUND_S = 30.0  # no new merge is begun after so long
_TERMINAL = [str(state) for state in TERMINAL_STATES]


@dataclass(frozen=True)
class _Partition:
    name: str
    jobs: tuple[int, ...]
    bytes: int

    @property
    def tier(self) -> int:
        tier, limit = 0, _FIRST_TIER_BYTES
        while self.bytes >= limit:
            tier, limit = tier + 1, limit * FACTOR
        return tier


def tidy(conn: Connection, settled_s: float = _SETTLED_S) -> int:
    """One round over all per-query tables: drop what deleted jobs left, merge what is small; returns changes made.

    For a reconciler's connection in autocommit. Gives way to readers and to other rounds: what cannot be done now is
    left to the next call.
    """
    return sum(sweep(conn, name, settled_s) + merge(conn, name, settled_s) for name in result_tables())


def sweep(conn: Connection, table: str, settled_s: float = _SETTLED_S) -> int:
    """Drop partitions whose jobs are all deleted, and rewrite common ones without their deleted jobs."""
    with _Exclusive(conn, table) as locked:
        if not (locked and _remove_leftovers(conn, table)):
            return 0
        done, until = 0, time.monotonic() + _ROUND_S
        gone = _deleted_jobs(conn, table)
        for partition in _partitions(conn, table):
            left = tuple(job for job in partition.jobs if job not in gone)
            if not left:
                done += _detach(conn, table, partition.name)
            elif left != partition.jobs and _at_rest(conn, left, settled_s) and time.monotonic() < until:
                done += _replace(conn, table, [partition], left)
        return done


def merge(conn: Connection, table: str, settled_s: float = _SETTLED_S) -> int:
    """Pack full sets of equally small partitions of jobs at rest into one each; returns the number of merges."""
    with _Exclusive(conn, table) as locked:
        if not (locked and _remove_leftovers(conn, table)):
            return 0
        done, until = 0, time.monotonic() + _ROUND_S
        gone = _deleted_jobs(conn, table)
        resting = [
            partition
            for partition in _partitions(conn, table)
            if not gone.intersection(partition.jobs) and _at_rest(conn, partition.jobs, settled_s)
        ]
        for group in full_groups(resting):
            if time.monotonic() < until:
                done += _replace(conn, table, group, tuple(job for one in group for job in one.jobs))
        return done


class _Exclusive:
    """One housekeeper per table at a time, by an advisory lock of the session; entering tells whether it is ours."""

    def __init__(self, conn: Connection, table: str) -> None:
        self._conn = conn
        self._key = f"keyhole.merging.{table}"
        self._locked = False

    def __enter__(self) -> bool:
        row = self._conn.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (self._key,)).fetchone()
        self._locked = bool(row and row[0])
        return self._locked

    def __exit__(self, *_: object) -> None:
        if self._locked and not self._conn.closed:
            self._conn.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (self._key,))


def _partitions(conn: Connection, table: str) -> list[_Partition]:
    found = []
    for name, jobs in bounds(conn, table).items():
        row = conn.execute("SELECT pg_table_size(to_regclass(%s))", (f"{SCHEMA}.{name}",)).fetchone()
        if row is not None and row[0] is not None:
            found.append(_Partition(name, tuple(sorted(jobs)), row[0]))
    return found


def full_groups(partitions: Sequence[_Partition]) -> list[list[_Partition]]:
    """Groups to merge: of one tier, FACTOR of them or as many as fill at least half of the largest; the rest waits."""
    groups: list[list[_Partition]] = []
    for tier in sorted({partition.tier for partition in partitions}):
        group: list[_Partition] = []
        for partition in sorted(partitions, key=lambda one: min(one.jobs)):
            if partition.tier != tier or partition.bytes >= LARGEST_BYTES // 2:
                continue
            size = sum(one.bytes for one in group)
            if group and (len(group) == FACTOR or size + partition.bytes > LARGEST_BYTES):
                groups.append(group)
                group = []
            group.append(partition)
        groups.append(group)
    return [
        group
        for group in groups
        if len(group) == FACTOR or (len(group) > 1 and sum(one.bytes for one in group) >= LARGEST_BYTES // 2)
    ]


def _deleted_jobs(conn: Connection, table: str) -> set[int]:
    held = [job for jobs in bounds(conn, table).values() for job in jobs]
    rows = conn.execute(
        "SELECT id FROM unnest(%s::integer[]) AS id WHERE NOT EXISTS (SELECT FROM keyhole.job WHERE job.id = id.id)",
        (held,),
    )
    return {row[0] for row in rows.fetchall()}


def _at_rest(conn: Connection, jobs: Sequence[int], settled_s: float) -> bool:
    row = conn.execute(
        """
        SELECT count(*) FROM keyhole.job WHERE id = ANY(%s) AND state = ANY(%s)
          AND finished_at <= clock_timestamp() - make_interval(secs => %s)
        """,
        (list(jobs), _TERMINAL, settled_s),
    ).fetchone()
    assert row is not None
    return row[0] == len(jobs)


def _replace(conn: Connection, table: str, old: Sequence[_Partition], jobs: Sequence[int]) -> bool:
    """Put one partition with the rows of ``jobs`` in the place of old ones; False if it has to wait."""
    before = _signature(conn, jobs)
    name = _copy(conn, table, old, jobs)
    relation = sql.Identifier(SCHEMA, name)
    index = "CREATE INDEX CONCURRENTLY ON {} USING brin (job_id, {}) WITH (pages_per_range = {})"
    try:
        _wait_out(conn, sql.SQL(index).format(relation, index_key(table), sql.Literal(PAGES_PER_RANGE)))
        conn.execute(sql.SQL("ANALYZE {}").format(relation))
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{_SWAP_WAIT_S}s")))
            # Rows of jobs before the table, as everywhere. A retry or deletion under way has them locked: give up.
            conn.execute("SELECT FROM keyhole.job WHERE id = ANY(%s) ORDER BY id FOR SHARE NOWAIT", (list(jobs),))
            if _signature(conn, jobs) != before:
                raise errors.LockNotAvailable
            _swap(conn, table, old, relation, jobs)
    except (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected):
        conn.execute(sql.SQL("DROP TABLE {}").format(relation))
        return False
    return True


def _signature(conn: Connection, jobs: Sequence[int]) -> list[tuple]:
    """What changes when one of the jobs is retried, written to or deleted."""
    return conn.execute(
        "SELECT id, state, finished_at, rows FROM keyhole.job WHERE id = ANY(%s) ORDER BY id", (list(jobs),)
    ).fetchall()


def _copy(conn: Connection, table: str, old: Sequence[_Partition], jobs: Sequence[int]) -> str:
    """Copy the jobs' rows into a new table outside the parent, in the order that serves its index; returns its name."""
    with conn.transaction():
        row = conn.execute("SELECT nextval('keyhole.partition_number')").fetchone()
        assert row is not None
        name = f"{table}_m{row[0]}"
        new = sql.Identifier(SCHEMA, name)
        conn.execute(sql.SQL("CREATE TABLE {} (LIKE {})").format(new, sql.Identifier(SCHEMA, table)))
        holder = {job: partition.name for partition in old for job in partition.jobs}
        for job in sorted(jobs):
            conn.execute(
                sql.SQL("INSERT INTO {} SELECT * FROM {} WHERE job_id = {} ORDER BY {}, ctid").format(
                    new, sql.Identifier(SCHEMA, holder[job]), sql.Literal(job), index_key(table)
                )
            )
        # Proves the partition's bounds, so that attaching need not read the table under the exclusive lock.
        conn.execute(sql.SQL("ALTER TABLE {} ADD CONSTRAINT bounds CHECK (job_id IN ({}))").format(new, _list(jobs)))
    return name


def _swap(
    conn: Connection, table: str, old: Sequence[_Partition], relation: sql.Identifier, jobs: Sequence[int]
) -> None:
    parent = sql.Identifier(SCHEMA, table)
    conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(parent))
    for partition in old:
        name = sql.Identifier(SCHEMA, partition.name)
        conn.execute(sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(parent, name))
        conn.execute(sql.SQL("DROP TABLE {}").format(name))
    conn.execute(sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES IN ({})").format(parent, relation, _list(jobs)))
    conn.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT bounds").format(relation))


def _detach(conn: Connection, table: str, name: str) -> bool:
    """Drop a partition of deleted jobs; False if its readers took too long, and the next round ends what was begun.

    CONCURRENTLY waits for readers instead of blocking new ones.
    """
    relation = sql.Identifier(SCHEMA, name)
    statement = sql.SQL("ALTER TABLE {} DETACH PARTITION {} CONCURRENTLY").format(
        sql.Identifier(SCHEMA, table), relation
    )
    try:
        _wait_out(conn, statement)
    except errors.QueryCanceled:
        return False
    conn.execute(sql.SQL("DROP TABLE {}").format(relation))
    return True


def _wait_out(conn: Connection, statement: sql.Composed) -> None:
    """Run a statement that waits for others' transactions, but not for ever; raises QueryCanceled."""
    conn.execute(sql.SQL("SET statement_timeout = {}").format(sql.Literal(f"{_SNAPSHOT_WAIT_S}s")))
    try:
        conn.execute(statement)
    finally:
        if not conn.closed:
            conn.execute("RESET statement_timeout")


def _remove_leftovers(conn: Connection, table: str) -> bool:
    """Finish what an earlier round began: pending detachments, and tables that were never or are no longer attached.

    False if a detachment still waits for readers: a table can have one at a time.
    """
    pending = conn.execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid "
        "WHERE inhparent = to_regclass(%s) AND inhdetachpending",
        (f"{SCHEMA}.{table}",),
    ).fetchall()
    for (name,) in pending:
        names = sql.Identifier(SCHEMA, table), sql.Identifier(SCHEMA, name)
        try:
            _wait_out(conn, sql.SQL("ALTER TABLE {} DETACH PARTITION {} FINALIZE").format(*names))
        except errors.QueryCanceled:
            return False
    alone = conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' "
        "AND relname ~ %s AND NOT relispartition",
        (SCHEMA, f"^{table}_[jm][0-9]+$"),
    ).fetchall()
    for (name,) in alone:
        conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(SCHEMA, name)))
    return True


def _list(jobs: Sequence[int]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Literal(job) for job in sorted(jobs))
