"""Checkpoints that watches have seen, and the probes submitted for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class SeenModel:
    """A checkpoint whose probes have not all been judged."""

    source: str
    run_id: int | None
    step: int | None
    suite_id: int
    judged_jobs: list[int]


@dataclass(frozen=True)
class SuiteJob:
    suite_id: int
    job_id: int
    kind: str
    state: str
    error_message: str | None


def unseen(conn: Connection, watch_id: int, sources: Sequence[str]) -> list[str]:
    """Those of the sources that the watch has not seen, in their order."""
    rows = conn.execute(
        "SELECT source FROM keyhole.watch_model WHERE watch_id = %s AND source = ANY(%s)", (watch_id, list(sources))
    )
    seen = {source for (source,) in rows}
    return [source for source in sources if source not in seen]


def add(
    conn: Connection,
    watch_id: int,
    source: str,
    *,
    run_id: int | None = None,
    step: int | None = None,
    judged: bool = False,
    problem: str | None = None,
) -> bool:
    """Store that the watch has seen a checkpoint; False if it had."""
    return (
        conn.execute(
            "INSERT INTO keyhole.watch_model (watch_id, source, run_id, step, judged, problem) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (watch_id, source, run_id, step, judged, problem),
        ).rowcount
        > 0
    )


def set_suite(conn: Connection, watch_id: int, source: str, suite_id: int) -> None:
    conn.execute(
        "UPDATE keyhole.watch_model SET suite_id = %s WHERE watch_id = %s AND source = %s", (suite_id, watch_id, source)
    )


def unjudged(conn: Connection, watch_id: int) -> list[SeenModel]:
    """Checkpoints whose probes have not all been judged, or some of whose probes brought nothing, by step.

    The latter because a job that failed may be queued again.
    """
    with conn.cursor(row_factory=class_row(SeenModel)) as cursor:
        return cursor.execute(
            "SELECT source, run_id, step, suite_id, judged_jobs FROM keyhole.watch_model "
            "WHERE watch_id = %s AND suite_id IS NOT NULL AND (NOT judged OR problem IS NOT NULL) "
            "ORDER BY step, source",
            (watch_id,),
        ).fetchall()


def any_waiting(conn: Connection, watch_id: int) -> bool:
    """Whether probes of a checkpoint have not ended. Those of a suite that was deleted are not waited for."""
    row = conn.execute(
        "SELECT FROM keyhole.watch_model WHERE watch_id = %s AND NOT judged AND suite_id IS NOT NULL LIMIT 1",
        (watch_id,),
    ).fetchone()
    return row is not None


def jobs_of(conn: Connection, suite_ids: Iterable[int]) -> list[SuiteJob]:
    with conn.cursor(row_factory=class_row(SuiteJob)) as cursor:
        return cursor.execute(
            "SELECT suite_id, job.id AS job_id, kind, state, error_message FROM keyhole.suite_job "
            "JOIN keyhole.job ON job.id = job_id WHERE suite_id = ANY(%s) ORDER BY suite_id, position",
            (list(suite_ids),),
        ).fetchall()


def set_judged(
    conn: Connection, watch_id: int, source: str, judged_jobs: Sequence[int], *, judged: bool, problem: str | None
) -> None:
    conn.execute(
        """
        UPDATE keyhole.watch_model SET judged_jobs = %(jobs)s, judged = %(judged)s, problem = %(problem)s
        WHERE watch_id = %(watch)s AND source = %(source)s
          AND (judged_jobs, judged, coalesce(problem, '')) IS DISTINCT FROM
              (%(jobs)s::integer[], %(judged)s, coalesce(%(problem)s, ''))
        """,
        {"watch": watch_id, "source": source, "jobs": list(judged_jobs), "judged": judged, "problem": problem},
    )


def newest(conn: Connection, watch_id: int, limit: int) -> list[dict[str, Any]]:
    cursor = conn.execute(
        "SELECT source, run_id, step, suite_id, judged, problem, seen_at FROM keyhole.watch_model "
        "WHERE watch_id = %s ORDER BY seen_at DESC, source DESC LIMIT %s",
        (watch_id, limit),
    )
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor]
