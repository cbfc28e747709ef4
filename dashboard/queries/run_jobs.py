"""Jobs that measured checkpoints of runs, and alerts about runs.

A checkpoint is known by its identity: equal models share their jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import class_row

OF_CHECKPOINT = """
SELECT DISTINCT job.id AS job_id, job.kind, job.state, job.label, job.dataset, job.created_at
FROM analysis.checkpoint
JOIN analysis.job_model ON job_model.model_identity = checkpoint.identity
JOIN analysis.job ON job.id = job_model.job_id
WHERE checkpoint.id = %(checkpoint)s AND job.kind <> 'training'
ORDER BY job.id DESC LIMIT 500"""

_OF_KIND = """
SELECT job.id, count(DISTINCT checkpoint.run_id) AS runs
FROM analysis.checkpoint
JOIN analysis.job_model ON job_model.model_identity = checkpoint.identity
JOIN analysis.job ON job.id = job_model.job_id
WHERE checkpoint.run_id = ANY(%(runs)s) AND job.kind = %(kind)s AND job.state = 'succeeded'
GROUP BY job.id ORDER BY runs DESC, job.id DESC"""

# of each run the last checkpoint, and the newest job that measured it
AT_THE_END = """
SELECT DISTINCT ON (ends.run_id) ends.run_id, ends.checkpoint_id, ends.step, measured.job_id
FROM (SELECT DISTINCT ON (run_id) run_id, id AS checkpoint_id, step, identity FROM analysis.checkpoint
      WHERE run_id = ANY(%(runs)s) ORDER BY run_id, step DESC) AS ends
LEFT JOIN (SELECT job_model.model_identity, job.id AS job_id FROM analysis.job
           JOIN analysis.job_model ON job_model.job_id = job.id AND job_model.number = 0
           WHERE job.kind = %(kind)s AND job.state = 'succeeded') AS measured
  ON measured.model_identity = ends.identity
ORDER BY ends.run_id, measured.job_id DESC NULLS LAST"""


@dataclass(frozen=True)
class MeasuringJob:
    job_id: int
    kind: str
    state: str
    label: str | None
    dataset: str
    created_at: datetime


@dataclass(frozen=True)
class EndOfRun:
    """The last checkpoint of a run, and the newest job of a kind that measured it."""

    run_id: int
    checkpoint_id: int
    step: int
    job_id: int | None


def of_checkpoint(conn: psycopg.Connection, checkpoint: int) -> list[MeasuringJob]:
    """Probes of a checkpoint in any state, the newest first."""
    with conn.cursor(row_factory=class_row(MeasuringJob)) as cursor:
        return cursor.execute(OF_CHECKPOINT, {"checkpoint": checkpoint}).fetchall()


def of_kind(conn: psycopg.Connection, runs: Sequence[int], kind: str) -> list[int]:
    """Finished jobs of a kind that measured checkpoints of these runs: those of the most runs first, then newest."""
    return [row[0] for row in conn.execute(_OF_KIND, {"runs": list(runs), "kind": kind}).fetchall()]


def at_the_end(conn: psycopg.Connection, runs: Sequence[int], kind: str) -> list[EndOfRun]:
    """Of those of the runs that have a checkpoint."""
    with conn.cursor(row_factory=class_row(EndOfRun)) as cursor:
        return cursor.execute(AT_THE_END, {"runs": list(runs), "kind": kind}).fetchall()


def alerts(conn: psycopg.Connection, run: int) -> int:
    """How many alerts rules have raised about a run."""
    row = conn.execute("SELECT count(*) FROM analysis.alert WHERE run_id = %s", (run,)).fetchone()
    return row[0] if row else 0
