"""What an operator watches, counted in the database: the figures behind GET /metrics."""

from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True)
class Figures:
    jobs: list[tuple[str, str, int]]  # kind, state, number
    oldest_queued_s: list[tuple[str, float]]  # queue, age in seconds of the oldest job that waits
    attempts: list[tuple[str, int]]  # outcome ('live' while it runs), number
    workers: list[tuple[str, float, float | None, int | None]]  # name, seen age, poll age, GPU memory in use
    rows: int  # rows of the jobs that exist
    counters: list[tuple[str, int]]


def figures(conn: Connection) -> Figures:
    """All figures, of one moment: call inside a repeatable-read transaction or accept small differences."""
    return Figures(
        jobs=conn.execute(
            "SELECT kind, state, count(*) FROM keyhole.job GROUP BY kind, state ORDER BY 1, 2"
        ).fetchall(),
        oldest_queued_s=conn.execute(
            """
            SELECT queue, max(extract(epoch FROM clock_timestamp() - created_at))::float8
            FROM keyhole.job WHERE state = 'queued' GROUP BY queue ORDER BY queue
            """
        ).fetchall(),
        attempts=conn.execute(
            "SELECT coalesce(outcome, 'live'), count(*) FROM keyhole.attempt GROUP BY 1 ORDER BY 1"
        ).fetchall(),
        workers=conn.execute(
            """
            SELECT name, extract(epoch FROM clock_timestamp() - seen_at)::float8,
                extract(epoch FROM clock_timestamp() - polled_at)::float8, gpu_memory_bytes
            FROM keyhole.worker ORDER BY name
            """
        ).fetchall(),
        rows=int((conn.execute("SELECT coalesce(sum(rows), 0) FROM keyhole.job").fetchone() or (0,))[0]),
        counters=conn.execute("SELECT name, value FROM keyhole.counter ORDER BY name").fetchall(),
    )
