"""Counters that only grow, such as finishes that came too late; shown as metrics."""

from psycopg import Connection


def increment(conn: Connection, name: str, by: int = 1) -> None:
    conn.execute(
        "INSERT INTO keyhole.counter (name, value) VALUES (%s, %s) "
        "ON CONFLICT (name) DO UPDATE SET value = counter.value + excluded.value",
        (name, by),
    )


def all_counters(conn: Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT name, value FROM keyhole.counter ORDER BY name").fetchall())
