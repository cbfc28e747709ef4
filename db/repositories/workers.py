"""Workers: who serves which queues, and when each was last seen and last asked for work."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class WorkerRow:
    name: str
    host: str
    queues: str
    devices: str
    version: str
    started_at: datetime
    seen_at: datetime
    polled_at: datetime | None  # last time it asked the database for work
    gpu_memory_bytes: int | None
    seen_age_s: float


def register(conn: Connection, name: str, host: str, queues: str, devices: str, version: str) -> None:
    conn.execute(
        """
        INSERT INTO keyhole.worker (name, host, queues, devices, version) VALUES (%s, %s, %s, %s, %s)
        ON CONFLICT (name) DO UPDATE SET host = excluded.host, queues = excluded.queues, devices = excluded.devices,
            version = excluded.version, started_at = clock_timestamp(), seen_at = clock_timestamp(), polled_at = NULL
        """,
        (name, host, queues, devices, version),
    )


def seen(conn: Connection, name: str, gpu_memory_bytes: int | None) -> None:
    conn.execute(
        "UPDATE keyhole.worker SET seen_at = clock_timestamp(), gpu_memory_bytes = %s WHERE name = %s",
        (gpu_memory_bytes, name),
    )


def polled(conn: Connection, name: str) -> None:
    conn.execute(
        "UPDATE keyhole.worker SET polled_at = clock_timestamp(), seen_at = clock_timestamp() WHERE name = %s", (name,)
    )


def retire(conn: Connection, name: str) -> None:
    """Forget a worker that was shut down in order."""
    conn.execute("DELETE FROM keyhole.worker WHERE name = %s", (name,))


def all_workers(conn: Connection) -> list[WorkerRow]:
    with conn.cursor(row_factory=class_row(WorkerRow)) as cursor:
        return cursor.execute(
            "SELECT *, extract(epoch FROM clock_timestamp() - seen_at)::float8 AS seen_age_s "
            "FROM keyhole.worker ORDER BY name"
        ).fetchall()
