"""Watches: rows, listing, and who may write what one has seen or raised."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

ENDED_WITH_RUNS = "its runs have ended"
STOPPED = "stopped"


@dataclass(frozen=True)
class WatchRow:
    id: int
    name: str
    target: str
    body: dict[str, Any]
    active: bool
    ended: str | None
    submitted_by: int | None
    created_at: datetime
    looked_at: datetime | None
    problem: str | None
    # joined
    submitted_by_name: str | None
    models: int
    models_judged: int
    models_failed: int
    alerts: int
    unacknowledged: int


_SELECT = """
SELECT watch.*, api_token.name AS submitted_by_name, seen.*, raised.*
FROM keyhole.watch
LEFT JOIN keyhole.api_token ON api_token.id = watch.submitted_by
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS models, count(*) FILTER (WHERE judged)::integer AS models_judged,
           count(*) FILTER (WHERE problem IS NOT NULL)::integer AS models_failed
    FROM keyhole.watch_model WHERE watch_id = watch.id
) AS seen
CROSS JOIN LATERAL (
    SELECT count(*)::integer AS alerts, count(*) FILTER (WHERE acknowledged_at IS NULL)::integer AS unacknowledged
    FROM keyhole.alert WHERE watch_id = watch.id
) AS raised
"""


def insert(conn: Connection, name: str, target: str, body: dict[str, Any], token_id: int | None) -> int:
    row = conn.execute(
        "INSERT INTO keyhole.watch (name, target, body, submitted_by) VALUES (%s, %s, %s, %s) RETURNING id",
        (name, target, Jsonb(body), token_id),
    ).fetchone()
    assert row is not None
    return row[0]


def get(conn: Connection, watch_id: int) -> WatchRow | None:
    with conn.cursor(row_factory=class_row(WatchRow)) as cursor:
        return cursor.execute(_SELECT + "WHERE watch.id = %s", (watch_id,)).fetchone()


def page(
    conn: Connection,
    *,
    before_id: int | None,
    text: str | None = None,
    active: bool | None = None,
    run_id: int | None = None,
    limit: int,
) -> list[WatchRow]:
    """Watches newest first, below ``before_id``; ``text`` is part of name or target."""
    with conn.cursor(row_factory=class_row(WatchRow)) as cursor:
        return cursor.execute(
            _SELECT
            + """
            WHERE (%(before)s::integer IS NULL OR watch.id < %(before)s)
              AND (%(text)s::text IS NULL OR strpos(lower(watch.name || ' ' || watch.target), lower(%(text)s)) > 0)
              AND (%(active)s::boolean IS NULL OR watch.active = %(active)s)
              AND (%(run)s::integer IS NULL OR EXISTS (
                  SELECT FROM keyhole.watch_run WHERE watch_id = watch.id AND run_id = %(run)s))
            ORDER BY watch.id DESC LIMIT %(limit)s
            """,
            {"before": before_id, "text": text, "active": active, "run": run_id, "limit": limit},
        ).fetchall()


def delete(conn: Connection, watch_id: int) -> bool:
    return conn.execute("DELETE FROM keyhole.watch WHERE id = %s", (watch_id,)).rowcount > 0


def end(conn: Connection, watch_id: int, why: str) -> None:
    conn.execute("UPDATE keyhole.watch SET active = false, ended = %s WHERE id = %s", (why, watch_id))


def resume(conn: Connection, watch_id: int) -> None:
    """Let a watch look again, also at checkpoints that it had given up."""
    conn.execute(
        "UPDATE keyhole.watch SET active = true, ended = NULL, problem = NULL, looked_at = NULL WHERE id = %s",
        (watch_id,),
    )
    conn.execute(
        "DELETE FROM keyhole.watch_model WHERE watch_id = %s AND suite_id IS NULL AND problem IS NOT NULL", (watch_id,)
    )


def active(conn: Connection) -> list[WatchRow]:
    """Watches that look, without their counts, oldest first."""
    with conn.cursor(row_factory=class_row(WatchRow)) as cursor:
        return cursor.execute(
            "SELECT *, NULL AS submitted_by_name, 0 AS models, 0 AS models_judged, 0 AS models_failed, 0 AS alerts, "
            "0 AS unacknowledged FROM keyhole.watch WHERE active ORDER BY id"
        ).fetchall()


def lock(conn: Connection, watch_id: int, *, skip: bool) -> bool:
    """Hold the row of an active watch until the end of the transaction; False if it is not active, or held by others.

    Whoever writes what a watch has seen or raised holds its row; ``skip`` does not wait for another who does.
    """
    how = "FOR UPDATE SKIP LOCKED" if skip else "FOR UPDATE"
    row = conn.execute(f"SELECT FROM keyhole.watch WHERE id = %s AND active {how}", (watch_id,)).fetchone()
    return row is not None


def looked(conn: Connection, watch_id: int, problem: str | None, *, at_most_every_s: float = 15.0) -> None:
    """Store that a watch has looked and what kept it, without a write where little would change."""
    conn.execute(
        """
        UPDATE keyhole.watch SET looked_at = clock_timestamp(), problem = %(problem)s
        WHERE id = %(id)s AND (problem IS DISTINCT FROM %(problem)s OR looked_at IS NULL
            OR looked_at < clock_timestamp() - make_interval(secs => %(every)s))
        """,
        {"id": watch_id, "problem": problem, "every": at_most_every_s},
    )


def look_again(conn: Connection, watch_id: int) -> None:
    """Let the next poll be at once: more was found than is taken at one look."""
    conn.execute("UPDATE keyhole.watch SET looked_at = NULL WHERE id = %s", (watch_id,))


def begin_poll(conn: Connection, watch_id: int, every_s: float) -> bool:
    """Whether it is time to look, which is then this caller's to do."""
    return (
        conn.execute(
            """
            UPDATE keyhole.watch SET looked_at = clock_timestamp() WHERE id = %s AND active
              AND (looked_at IS NULL OR looked_at <= clock_timestamp() - make_interval(secs => %s))
            """,
            (watch_id, every_s),
        ).rowcount
        > 0
    )


def wake(conn: Connection) -> None:
    """Let watches look again that ended with their runs, where a run, or a probe that had failed, is queued again."""
    conn.execute(
        """
        WITH queued AS (
            SELECT watch_id FROM keyhole.watch_run JOIN keyhole.run ON run.id = run_id
            JOIN keyhole.job ON job.id = job_id
            WHERE job.queue = 'training' AND job.state IN ('queued', 'running')
            UNION
            SELECT watch_id FROM keyhole.watch_model JOIN keyhole.suite_job USING (suite_id)
            JOIN keyhole.job ON job.id = job_id
            WHERE watch_model.problem IS NOT NULL AND job.state IN ('queued', 'running')
        )
        UPDATE keyhole.watch SET active = true, ended = NULL FROM queued
        WHERE watch.id = queued.watch_id AND NOT watch.active AND watch.ended = %s
        """,
        (ENDED_WITH_RUNS,),
    )
