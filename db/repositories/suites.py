"""Suites: jobs that were submitted together."""

from dataclasses import dataclass
from datetime import datetime

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class SuiteRow:
    id: int
    name: str
    created_at: datetime
    submitted_by: str | None
    models: int
    jobs_by_state: dict[str, int]
    shards: int
    shards_done: int
    stages_waiting: int
    sweep_id: int | None


@dataclass(frozen=True)
class SuiteJobRow:
    job_id: int
    reused: bool
    stage: int


_SELECT = """
SELECT suite.id, suite.name, suite.created_at, api_token.name AS submitted_by, counted.*,
       (SELECT count(*) FROM keyhole.suite_stage WHERE suite_id = suite.id AND state = 'waiting') AS stages_waiting,
       (SELECT sweep.id FROM keyhole.sweep WHERE suite_id = suite.id) AS sweep_id
FROM keyhole.suite
LEFT JOIN keyhole.api_token ON api_token.id = suite.submitted_by
CROSS JOIN LATERAL (
    SELECT coalesce(sum(models), 0)::integer AS models, coalesce(sum(shards), 0)::bigint AS shards,
           coalesce(sum(shards_done), 0)::bigint AS shards_done,
           coalesce(jsonb_object_agg(state, jobs) FILTER (WHERE state IS NOT NULL), '{}') AS jobs_by_state
    FROM (
        SELECT job.state, count(*) AS jobs, sum(job.shards) AS shards, sum(job.shards_done) AS shards_done,
               NULL::bigint AS models
        FROM keyhole.suite_job JOIN keyhole.job ON job.id = job_id WHERE suite_id = suite.id GROUP BY job.state
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, count(DISTINCT job.model_identity)
        FROM keyhole.suite_job JOIN keyhole.job ON job.id = job_id WHERE suite_id = suite.id
    ) AS by_state
) AS counted
"""


def insert(conn: Connection, name: str, token_id: int | None) -> int:
    row = conn.execute(
        "INSERT INTO keyhole.suite (name, submitted_by) VALUES (%s, %s) RETURNING id", (name, token_id)
    ).fetchone()
    assert row is not None
    return row[0]


def add(conn: Connection, suite_id: int, position: int, job_id: int, *, reused: bool, stage: int = 0) -> None:
    conn.execute(
        "INSERT INTO keyhole.suite_job (suite_id, position, job_id, reused, stage) VALUES (%s, %s, %s, %s, %s)",
        (suite_id, position, job_id, reused, stage),
    )


def next_position(conn: Connection, suite_id: int) -> int:
    row = conn.execute(
        "SELECT coalesce(max(position) + 1, 0) FROM keyhole.suite_job WHERE suite_id = %s", (suite_id,)
    ).fetchone()
    assert row is not None
    return row[0]


def get(conn: Connection, suite_id: int) -> SuiteRow | None:
    with conn.cursor(row_factory=class_row(SuiteRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE suite.id = %s", (suite_id,)).fetchone()


def page(conn: Connection, *, before_id: int | None, text: str | None, limit: int) -> list[SuiteRow]:
    """Suites newest first, below ``before_id``; ``text`` is part of the name."""
    with conn.cursor(row_factory=class_row(SuiteRow)) as cursor:
        return cursor.execute(
            _SELECT
            + """
            WHERE (%(before)s::integer IS NULL OR suite.id < %(before)s)
              AND (%(text)s::text IS NULL OR strpos(lower(suite.name), lower(%(text)s)) > 0)
            ORDER BY suite.id DESC LIMIT %(limit)s
            """,
            {"before": before_id, "text": text, "limit": limit},
        ).fetchall()


def members(conn: Connection, suite_id: int) -> list[SuiteJobRow]:
    """The suite's jobs in their order; those deleted since are gone."""
    with conn.cursor(row_factory=class_row(SuiteJobRow)) as cursor:
        return cursor.execute(
            "SELECT job_id, reused, stage FROM keyhole.suite_job WHERE suite_id = %s ORDER BY position", (suite_id,)
        ).fetchall()
