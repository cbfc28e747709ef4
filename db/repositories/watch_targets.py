"""Runs that watches look at: one, those of a suite, or those of a sweep; and their checkpoints."""

from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row


@dataclass(frozen=True)
class UnseenCheckpoint:
    run_id: int
    step: int

    @property
    def source(self) -> str:
        return f"run:{self.run_id}@{self.step}"


_SUITE = """CASE %(form)s::text WHEN 'suite' THEN %(number)s::integer
    WHEN 'sweep' THEN (SELECT suite_id FROM keyhole.sweep WHERE id = %(number)s::integer) END"""
# Runs of the target, with the jobs that train them.
_OF_TARGET = f"""
    SELECT run.id AS run_id, run.job_id FROM keyhole.run WHERE %(form)s::text = 'run' AND run.id = %(number)s::integer
    UNION ALL
    SELECT run.id, run.job_id FROM keyhole.run JOIN keyhole.suite_job USING (job_id) WHERE suite_id = {_SUITE}
"""  # noqa: S608  # an expression written above
# What comes and goes while a run goes on: the state to resume from, and the best one so far.
_STAYS = "NOT checkpoint.reasons <@ ARRAY['best', 'resume']"
_RUN_ENDED = "(job.id IS NULL OR job.state IN ('succeeded', 'failed', 'cancelled'))"


def exists(conn: Connection, form: str, number: int) -> bool:
    row = conn.execute(
        """
        SELECT CASE %(form)s::text WHEN 'run' THEN EXISTS (SELECT FROM keyhole.run WHERE id = %(number)s::integer)
            WHEN 'suite' THEN EXISTS (SELECT FROM keyhole.suite WHERE id = %(number)s::integer)
            WHEN 'sweep' THEN EXISTS (SELECT FROM keyhole.sweep WHERE id = %(number)s::integer) END
        """,
        {"form": form, "number": number},
    ).fetchone()
    return bool(row and row[0])


def join_runs(conn: Connection, watch_id: int, form: str, number: int) -> None:
    """Let the watch look at the runs of its target that it does not know yet."""
    conn.execute(
        f"""
        INSERT INTO keyhole.watch_run (watch_id, run_id) SELECT %(watch)s, run_id FROM ({_OF_TARGET}) AS found
        WHERE NOT EXISTS (SELECT FROM keyhole.watch_run AS known WHERE watch_id = %(watch)s
                          AND known.run_id = found.run_id)
        ON CONFLICT DO NOTHING
        """,  # noqa: S608  # a query written above
        {"watch": watch_id, "form": form, "number": number},
    )


def datasets(conn: Connection, form: str, number: int) -> list[str]:
    """Data sets that the target's runs train on."""
    rows = conn.execute(
        f"SELECT DISTINCT dataset_source FROM ({_OF_TARGET}) AS found JOIN keyhole.job ON job.id = job_id",  # noqa: S608  # a query written above
        {"form": form, "number": number},
    )
    return [source for (source,) in rows]


def runs(conn: Connection, watch_id: int) -> list[int]:
    return [
        run_id
        for (run_id,) in conn.execute(
            "SELECT run_id FROM keyhole.watch_run WHERE watch_id = %s ORDER BY run_id", (watch_id,)
        )
    ]


def all_ended(conn: Connection, watch_id: int, form: str, number: int) -> bool:
    """Whether no run of the target goes on or is still to come."""
    row = conn.execute(
        f"""
        SELECT NOT EXISTS (
            SELECT FROM keyhole.watch_run JOIN keyhole.run ON run.id = run_id LEFT JOIN keyhole.job ON job.id = job_id
            WHERE watch_id = %(watch)s AND NOT {_RUN_ENDED}
        ) AND NOT EXISTS (
            SELECT FROM keyhole.suite_stage WHERE state = 'waiting' AND suite_id = {_SUITE}
        )
        """,  # noqa: S608  # a condition written above
        {"watch": watch_id, "form": form, "number": number},
    ).fetchone()
    assert row is not None
    return row[0]


def unseen_checkpoints(conn: Connection, watch_id: int, limit: int | None) -> list[UnseenCheckpoint]:
    """Checkpoints of the watch's runs that it has not seen, in the order of their steps."""
    with conn.cursor(row_factory=class_row(UnseenCheckpoint)) as cursor:
        return cursor.execute(
            f"""
            SELECT checkpoint.run_id, checkpoint.step
            FROM keyhole.watch_run JOIN keyhole.run ON run.id = run_id LEFT JOIN keyhole.job ON job.id = job_id
            JOIN keyhole.checkpoint USING (run_id)
            WHERE watch_id = %(watch)s AND ({_STAYS} OR 'best' = ANY(checkpoint.reasons) AND {_RUN_ENDED})
              AND NOT EXISTS (
                  SELECT FROM keyhole.watch_model
                  WHERE watch_id = %(watch)s AND source = format('run:%%s@%%s', checkpoint.run_id, checkpoint.step))
            ORDER BY checkpoint.step, checkpoint.run_id LIMIT %(limit)s
            """,  # noqa: S608  # conditions written above
            {"watch": watch_id, "limit": limit},
        ).fetchall()
