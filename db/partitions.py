"""Partitions of the per-query tables, LIST by job_id.

While a job is computed its rows have a partition of their own, ``<table>_j<job>``, without any index: COPY goes
straight into it. ``finish`` adds the BRIN index that serves reads. db/merging.py later packs small finished jobs
into common partitions and drops the storage of deleted ones.
"""

from psycopg import Connection, errors, sql

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import result_tables

SCHEMA = "keyhole"
# Rows of a shard lie together, sorted by layer, head and sequence; 16 pages hold about 2,300 of them, some ten heads.
PAGES_PER_RANGE = 16
_DROP_WAIT_S = 2  # readers of the whole table would queue behind a longer wait


def create(conn: Connection, table: str, job_id: int) -> None:
    """Give the job a partition of its own unless it has storage; any number of processes may ask at once.

    Attaching takes a lock on the parent that neither readers nor writers of other jobs notice, until the end of
    the transaction. Raises KeyholeError (not_found) if the job was deleted.
    """
    with conn.transaction():
        # Whoever deletes the job waits for this, or has gone before: no partition is left without a job.
        if conn.execute("SELECT FROM keyhole.job WHERE id = %s FOR KEY SHARE", (job_id,)).fetchone() is None:
            raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no job {job_id}.", "It may have been deleted.")
        conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", (f"keyhole.partition.{table}", job_id))
        if _holding(conn, table, job_id) is not None:
            return
        names = {"own": own(table, job_id), "parent": sql.Identifier(SCHEMA, table), "job": sql.Literal(job_id)}
        conn.execute(sql.SQL("CREATE TABLE {own} (LIKE {parent})").format(**names))
        # CREATE TABLE … PARTITION OF would lock readers out; ATTACH does not.
        conn.execute(sql.SQL("ALTER TABLE {parent} ATTACH PARTITION {own} FOR VALUES IN ({job})").format(**names))


def found(conn: Connection, table: str, job_id: int) -> sql.Identifier | None:
    """The partition that holds the job's rows, its own or a common one; None before the first, and after the last."""
    name = _holding(conn, table, job_id)
    return None if name is None else sql.Identifier(SCHEMA, name)


def storage(conn: Connection, table: str, job_id: int) -> sql.Identifier:
    """As ``found``, but raises KeyholeError (not_found) where there is none."""
    relation = found(conn, table, job_id)
    if relation is None:
        raise KeyholeError(
            ErrorCode.NOT_FOUND, f"Job {job_id} has no storage in {table}.", "It was deleted, or has not started."
        )
    return relation


def finish(conn: Connection, table: str, job_id: int) -> None:
    """Index and analyse a job's partition, once its last shard is written; a second call changes nothing."""
    name = _holding(conn, table, job_id)
    if name != f"{table}_j{job_id}":
        return  # a common partition has its index
    with conn.transaction():
        conn.execute(
            sql.SQL(
                "CREATE INDEX IF NOT EXISTS {index} ON {own} USING brin ({key}) WITH (pages_per_range = {pages})"
            ).format(
                index=sql.Identifier(f"{name}_brin"),
                own=own(table, job_id),
                key=index_key(table),
                pages=sql.Literal(PAGES_PER_RANGE),
            )
        )
        conn.execute(sql.SQL("ANALYZE {}").format(own(table, job_id)))


def drop(conn: Connection, table: str, job_id: int) -> None:
    """Take a job's rows away, in the transaction that deletes the job; housekeeping then drops what held them.

    A partition of its own is truncated, which frees the storage at the commit. When a long statement reads it
    just then, the rows stay until housekeeping finds them, rather than block everyone behind that statement.
    """
    name = _holding(conn, table, job_id)
    if name is None:
        return
    relation = sql.Identifier(SCHEMA, name)
    with conn.transaction():
        if name != f"{table}_j{job_id}":
            conn.execute(sql.SQL("DELETE FROM {} WHERE job_id = {}").format(relation, sql.Literal(job_id)))
            return
        before = conn.execute("SHOW lock_timeout").fetchone()
        assert before is not None
        try:
            with conn.transaction():
                conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{_DROP_WAIT_S}s")))
                conn.execute(sql.SQL("TRUNCATE {}").format(relation))
                conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(before[0])))
        except errors.LockNotAvailable:
            return


def index_key(table: str) -> sql.Composed:
    """Columns of the BRIN index: those by which rows are sorted, but for the query, which varies within a page."""
    names = [name for name in result_tables()[table].key if name != "query"]
    return sql.SQL(", ").join(map(sql.Identifier, names))


def own(table: str, job_id: int) -> sql.Identifier:
    return sql.Identifier(SCHEMA, f"{table}_j{job_id}")


def bounds(conn: Connection, table: str) -> dict[str, list[int]]:
    """Attached partitions and the jobs of each."""
    rows = conn.execute(
        """
        SELECT relname, (SELECT array_agg(found[1]::integer)
                         FROM regexp_matches(pg_get_expr(relpartbound, pg_class.oid), '\\d+', 'g') AS found)
        FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = to_regclass(%s) AND NOT inhdetachpending
        ORDER BY relname
        """,
        (f"{SCHEMA}.{table}",),
    ).fetchall()
    return dict(rows)


def _holding(conn: Connection, table: str, job_id: int) -> str | None:
    """Name of the partition of that job, or None."""
    own_name = f"{table}_j{job_id}"
    row = conn.execute(
        "SELECT FROM pg_inherits WHERE inhrelid = to_regclass(%s) AND inhparent = to_regclass(%s) "
        "AND NOT inhdetachpending",
        (f"{SCHEMA}.{own_name}", f"{SCHEMA}.{table}"),
    ).fetchone()
    if row is not None:
        return own_name
    return next((name for name, jobs in bounds(conn, table).items() if job_id in jobs), None)
