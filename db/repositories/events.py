"""The history of a job: one row per change, whose ids order the event stream."""

from typing import Any

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from services.contracts.jobs import EventView


def append(conn: Connection, job_id: int, type_: str, data: dict[str, Any]) -> None:
    conn.execute("INSERT INTO keyhole.job_event (job_id, type, data) VALUES (%s, %s, %s)", (job_id, type_, Jsonb(data)))


def after(conn: Connection, job_id: int, last_id: int, limit: int = 500) -> list[EventView]:
    """Events of a job with a larger id, oldest first.

    Every change of one job is made under its row lock, so a smaller id cannot appear after a larger one was read.
    """
    with conn.cursor(row_factory=class_row(EventView)) as cursor:
        return cursor.execute(
            "SELECT id, job_id, at, type, data FROM keyhole.job_event WHERE job_id = %s AND id > %s "
            "ORDER BY id LIMIT %s",
            (job_id, last_id, limit),
        ).fetchall()
