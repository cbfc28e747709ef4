"""The models that a job reads besides its first: a teacher, other checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class JobModel:
    number: int
    source: str
    identity: str


def insert(conn: Connection, job_id: int, models: Sequence[tuple[str, str]]) -> None:
    """Store (source, identity) of each, numbered in this order."""
    for number, (source, identity) in enumerate(models):
        conn.execute("INSERT INTO keyhole.job_model VALUES (%s, %s, %s, %s)", (job_id, number, source, identity))


def of_job(conn: Connection, job_id: int) -> list[JobModel]:
    """The models that the job reads besides its first."""
    with conn.cursor(row_factory=class_row(JobModel)) as cursor:
        return cursor.execute(
            "SELECT number, source, identity FROM keyhole.job_model WHERE job_id = %s ORDER BY number", (job_id,)
        ).fetchall()


def describe(conn: Connection, job_id: int, number: int, model_id: int) -> None:
    """Store which model a worker loaded."""
    conn.execute(
        "UPDATE keyhole.job_model SET model_id = %s WHERE job_id = %s AND number = %s", (model_id, job_id, number)
    )
