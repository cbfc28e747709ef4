"""Idempotency keys: which job a token's request with a given key made, and the hash of that request's body."""

from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class JobRequest:
    job_id: int
    body_sha256: bytes


def lock(conn: Connection, token_id: int, key: str) -> None:
    """Let one request of this token and key decide at a time; released at the end of the transaction."""
    conn.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (token_id, key))


def get(conn: Connection, token_id: int, key: str) -> JobRequest | None:
    with conn.cursor(row_factory=class_row(JobRequest)) as cursor:
        return cursor.execute(
            "SELECT job_id, body_sha256 FROM keyhole.job_request WHERE token_id = %s AND key = %s", (token_id, key)
        ).fetchone()


def insert(conn: Connection, token_id: int, key: str, body_sha256: bytes, job_id: int) -> None:
    conn.execute(
        "INSERT INTO keyhole.job_request (token_id, key, body_sha256, job_id) VALUES (%s, %s, %s, %s)",
        (token_id, key, body_sha256, job_id),
    )
