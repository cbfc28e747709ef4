"""Suites and their jobs."""

from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import class_row

MOST_SUITES = 200

SUITES = """
SELECT suite.id, suite.name, suite.created_at, suite.submitted_by,
       count(DISTINCT job.model_identity) AS models, count(*) AS jobs,
       count(*) FILTER (WHERE job.state = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE job.state = 'failed') AS failed,
       count(*) FILTER (WHERE job.state = 'cancelled') AS cancelled,
       coalesce(sum(job.shards), 0)::bigint AS shards, coalesce(sum(job.shards_done), 0)::bigint AS shards_done,
       (SELECT count(*) FROM analysis.suite_stage WHERE suite_id = suite.id AND suite_stage.state = 'waiting')
           AS stages_waiting
FROM analysis.suite JOIN analysis.suite_job ON suite_id = suite.id JOIN analysis.job ON job.id = job_id
WHERE strpos(lower(suite.name), lower(%(text)s)) > 0
GROUP BY suite.id, suite.name, suite.created_at, suite.submitted_by
ORDER BY suite.id DESC LIMIT %(limit)s"""

MEMBERS = """
SELECT job.id AS job_id, job.kind, job.state, job.phase, job.label, job.model, job.dataset, job.rows, job.shards,
       job.shards_done, job.duration_s, suite_job.reused, suite_job.stage, job.error_message, (
           SELECT stopped FROM analysis.sweep JOIN analysis.sweep_member ON sweep_id = sweep.id
           WHERE sweep.suite_id = suite_job.suite_id AND sweep_member.job_id = suite_job.job_id
       ) AS stopped
FROM analysis.suite_job JOIN analysis.job ON job.id = suite_job.job_id
WHERE suite_id = %(suite)s ORDER BY suite_job.position"""

STAGES = """
SELECT number, state, detail, ARRAY (SELECT jsonb_array_elements_text(models)) AS models, kinds, submitted_at
FROM analysis.suite_stage WHERE suite_id = %(suite)s ORDER BY number"""


@dataclass(frozen=True)
class SuiteLine:
    id: int
    name: str
    created_at: datetime
    submitted_by: str | None
    models: int
    jobs: int
    succeeded: int
    failed: int
    cancelled: int
    shards: int
    shards_done: int
    stages_waiting: int


@dataclass(frozen=True)
class Member:
    job_id: int
    kind: str
    state: str
    phase: str
    label: str | None
    model: str
    dataset: str
    rows: int
    shards: int
    shards_done: int
    duration_s: float | None
    reused: bool
    stage: int
    error_message: str | None
    stopped: str | None  # why its sweep gave it up


@dataclass(frozen=True)
class Stage:
    """One that comes after the first."""

    number: int
    state: str
    detail: str | None
    models: list[str]
    kinds: list[str]
    submitted_at: datetime | None


def suites(conn: psycopg.Connection, text: str, limit: int = MOST_SUITES) -> list[SuiteLine]:
    """Suites whose name holds the text, the newest first."""
    with conn.cursor(row_factory=class_row(SuiteLine)) as cursor:
        values = {"text": text.replace("\0", "").strip(), "limit": limit}
        return cursor.execute(SUITES.encode(), values).fetchall()


@dataclass(frozen=True)
class Head:
    """What is said of a suite before its jobs."""

    name: str
    submitted_by: str | None
    created_at: datetime
    sweep_id: int | None  # if its first stage is a sweep


def head(conn: psycopg.Connection, suite_id: int) -> Head | None:
    with conn.cursor(row_factory=class_row(Head)) as cursor:
        return cursor.execute(
            "SELECT name, submitted_by, created_at, "
            "(SELECT id FROM analysis.sweep WHERE suite_id = suite.id) AS sweep_id "
            "FROM analysis.suite WHERE id = %s",
            (suite_id,),
        ).fetchone()


def members(conn: psycopg.Connection, suite_id: int) -> list[Member]:
    """The suite's jobs in their order."""
    with conn.cursor(row_factory=class_row(Member)) as cursor:
        return cursor.execute(MEMBERS.encode(), {"suite": suite_id}).fetchall()


def stages(conn: psycopg.Connection, suite_id: int) -> list[Stage]:
    """The suite's stages after the first, in their order."""
    with conn.cursor(row_factory=class_row(Stage)) as cursor:
        return cursor.execute(STAGES.encode(), {"suite": suite_id}).fetchall()
