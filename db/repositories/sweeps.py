"""Sweeps and their members. What members brought is read from the views that analysts see."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from db.sweep_results import Outcome
from services.contracts.sweeps import SweepMember
from services.contracts.training.sweep import Member


@dataclass(frozen=True)
class SweepRow:
    id: int
    suite_id: int
    name: str
    created_at: datetime
    submitted_by: str | None
    model: str
    dataset: str
    body: dict[str, Any]
    runs: int
    deleted: int
    jobs_by_state: dict[str, int]


@dataclass(frozen=True)
class EarlierRequest:
    """What a token's request with an idempotency key made."""

    sweep_id: int
    body_sha256: bytes


@dataclass(frozen=True)
class Request:
    token_id: int
    key: str
    body_sha256: bytes


_SELECT = """
SELECT sweep.id, sweep.suite_id, suite.name, suite.created_at, api_token.name AS submitted_by, sweep.model,
       sweep.dataset, sweep.body, counted.*
FROM keyhole.sweep JOIN keyhole.suite ON suite.id = suite_id
LEFT JOIN keyhole.api_token ON api_token.id = suite.submitted_by
CROSS JOIN LATERAL (
    SELECT coalesce(sum(jobs), 0)::integer AS runs,
           coalesce(sum(jobs) FILTER (WHERE state IS NULL), 0)::integer AS deleted,
           coalesce(jsonb_object_agg(state, jobs) FILTER (WHERE state IS NOT NULL), '{}') AS jobs_by_state
    FROM (
        SELECT job.state, count(*) AS jobs FROM keyhole.sweep_member LEFT JOIN keyhole.job ON job.id = job_id
        WHERE sweep_id = sweep.id GROUP BY job.state
    ) AS by_state
) AS counted
"""
_MEMBERS = f"SELECT {', '.join(SweepMember.model_fields)} FROM analysis.sweep_member"  # noqa: S608  # our own names


def insert(conn: Connection, suite_id: int, model: str, dataset: str, body: dict[str, Any]) -> int:
    row = conn.execute(
        "INSERT INTO keyhole.sweep (suite_id, model, dataset, body) VALUES (%s, %s, %s, %s) RETURNING id",
        (suite_id, model, dataset, Jsonb(body)),
    ).fetchone()
    assert row is not None
    return row[0]


def add(conn: Connection, sweep_id: int, members: Sequence[tuple[Member, int]]) -> None:
    """Store the members with their jobs, in their order."""
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO keyhole.sweep_member (sweep_id, number, job_id, variant, setting, seed) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            [
                (sweep_id, number, job_id, member.variant, Jsonb(dict(member.setting)), member.seed)
                for number, (member, job_id) in enumerate(members)
            ],
        )


def get(conn: Connection, sweep_id: int) -> SweepRow | None:
    with conn.cursor(row_factory=class_row(SweepRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE sweep.id = %s", (sweep_id,)).fetchone()


def of_suite(conn: Connection, suite_id: int) -> int | None:
    row = conn.execute("SELECT id FROM keyhole.sweep WHERE suite_id = %s", (suite_id,)).fetchone()
    return row[0] if row else None


def page(conn: Connection, *, before_id: int | None, text: str | None, limit: int) -> list[SweepRow]:
    """Sweeps newest first, below ``before_id``; ``text`` is part of the name."""
    with conn.cursor(row_factory=class_row(SweepRow)) as cursor:
        return cursor.execute(
            _SELECT
            + """
            WHERE (%(before)s::integer IS NULL OR sweep.id < %(before)s)
              AND (%(text)s::text IS NULL OR strpos(lower(suite.name), lower(%(text)s)) > 0)
            ORDER BY sweep.id DESC LIMIT %(limit)s
            """,
            {"before": before_id, "text": text, "limit": limit},
        ).fetchall()


def members(conn: Connection, sweep_id: int) -> list[SweepMember]:
    """The sweep's members in their order; those whose jobs were deleted are there too."""
    with conn.cursor(row_factory=class_row(SweepMember)) as cursor:
        return cursor.execute((_MEMBERS + " WHERE sweep_id = %s ORDER BY number").encode(), (sweep_id,)).fetchall()


def of_job(conn: Connection, job_id: int) -> list[int]:
    """Sweeps that the job is a member of."""
    rows = conn.execute("SELECT sweep_id FROM keyhole.sweep_member WHERE job_id = %s ORDER BY sweep_id", (job_id,))
    return [row[0] for row in rows.fetchall()]


def outcome(member: SweepMember) -> Outcome:
    return Outcome(member.variant, member.setting, member.seed, member.final_validation_loss_nats)


def lock_request(conn: Connection, request: Request) -> EarlierRequest | None:
    """Let one request of this token and key decide at a time; what an earlier one made, if there is one."""
    conn.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (request.token_id, f"sweep {request.key}"))
    with conn.cursor(row_factory=class_row(EarlierRequest)) as cursor:
        return cursor.execute(
            "SELECT sweep_id, body_sha256 FROM keyhole.sweep_request WHERE token_id = %s AND key = %s",
            (request.token_id, request.key),
        ).fetchone()


def insert_request(conn: Connection, request: Request, sweep_id: int) -> None:
    conn.execute(
        "INSERT INTO keyhole.sweep_request (token_id, key, body_sha256, sweep_id) VALUES (%s, %s, %s, %s)",
        (request.token_id, request.key, request.body_sha256, sweep_id),
    )
