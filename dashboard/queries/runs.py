"""Training runs: the list, and those chosen with all their parameters."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from dashboard.queries.paging import Page, page_of, upwards
from dashboard.queries.text import storable


@dataclass(frozen=True)
class RunLine:
    """A run in the list. Of imported runs the job and all that comes of it are None."""

    run_id: int
    name: str
    job_id: int | None
    state: str
    phase: str | None
    variant: str | None
    seed: int | None
    steps: int | None
    steps_done: int
    model: str
    dataset: str | None
    optimizer: str | None
    learning_rate: float | None
    weight_decay: float | None
    last_validation_step: int | None
    last_validation_loss_nats: float | None
    best_validation_step: int | None
    best_validation_loss_nats: float | None
    last_validation_bits_per_byte: float | None
    submitted_by: str | None
    created_at: datetime
    duration_s: float | None
    error_message: str | None


@dataclass(frozen=True)
class Run(RunLine):
    """With what tells it from others, and the latest speed."""

    parameters: dict[str, Any] | None
    sequences_per_step: int | None
    length: int | None
    tokens_per_s: float | None

    @property
    def tokens_per_step(self) -> int | None:
        return self.sequences_per_step * self.length if self.sequences_per_step and self.length else None


@dataclass(frozen=True)
class Filters:
    """None or empty means any; ``text`` is searched in name, model and data set, or is a run's number."""

    text: str = ""
    variant: str | None = None
    state: str | None = None
    model: str | None = None
    suite: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Options:
    """What the filters offer."""

    variants: list[str]
    models: list[str]
    seeds: list[int]
    suites: dict[int, str]  # name by number, the newest first; sweeps are suites too


_LINE = """id AS run_id, name, job_id, state, phase, variant, seed, steps, steps_done, model, dataset,
       optimizer, learning_rate, weight_decay, last_validation_step, last_validation_loss_nats, best_validation_step,
       best_validation_loss_nats, last_validation_bits_per_byte, submitted_by, created_at, duration_s, error_message"""

_RUN_PAGE = r"""
SELECT {line} FROM analysis.run
WHERE (%(variant)s::text IS NULL OR variant = %(variant)s)
  AND (%(state)s::text IS NULL OR state = %(state)s)
  AND (%(model)s::text IS NULL OR model = %(model)s)
  AND (%(seed)s::int IS NULL OR seed = %(seed)s)
  AND (%(suite)s::int IS NULL OR job_id IN (SELECT job_id FROM analysis.suite_job WHERE suite_id = %(suite)s))
  AND (%(text)s = '' OR id::text = %(text)s OR concat_ws(E'\n', name, model, dataset) ILIKE %(pattern)s)
  AND (%(before)s::int IS NULL OR id < %(before)s)
  AND (%(before)s::int IS NOT NULL OR %(after)s::int IS NULL OR id > %(after)s)
ORDER BY id {direction}
LIMIT %(limit)s"""

_RUNS = """
SELECT {line}, parameters, sequences_per_step, length, speed.value AS tokens_per_s
FROM analysis.run
LEFT JOIN LATERAL (
    SELECT value FROM analysis.training_metric
    WHERE run_id = run.id AND metric = 'tokens_per_s' AND layer IS NULL AND head IS NULL
    ORDER BY step DESC LIMIT 1
) AS speed ON true
WHERE id = ANY(%(runs)s) ORDER BY id"""
RUNS = _RUNS.format(line=_LINE)

_SUITES = """
SELECT DISTINCT suite.id, suite.name FROM analysis.suite JOIN analysis.suite_job ON suite_id = suite.id
JOIN analysis.run USING (job_id) ORDER BY suite.id DESC LIMIT 500"""


def run_page(
    conn: psycopg.Connection, filters: Filters, *, before: int | None = None, after: int | None = None, limit: int = 25
) -> Page[RunLine]:
    """Runs with numbers below ``before``, or else those next above ``after``, or else the newest."""
    text = storable(filters.text).strip()
    pattern = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {
        "variant": storable(filters.variant) or None,
        "state": storable(filters.state) or None,
        "model": storable(filters.model) or None,
        "seed": filters.seed,
        "suite": filters.suite,
        "text": text.removeprefix("#"),
        "pattern": f"%{pattern}%",
        "before": before,
        "after": after,
        "limit": limit + 1,
    }
    query = _RUN_PAGE.format(line=_LINE, direction="ASC" if upwards(before, after) else "DESC")
    with conn.cursor(row_factory=class_row(RunLine)) as cursor:
        lines = cursor.execute(query.encode(), values).fetchall()
    return page_of(lines, limit, before=before, after=after)


def lines(conn: psycopg.Connection, runs: list[int]) -> list[RunLine]:
    """These runs as they are now, the newest first."""
    with conn.cursor(row_factory=class_row(RunLine)) as cursor:
        query = f"SELECT {_LINE} FROM analysis.run WHERE id = ANY(%s) ORDER BY id DESC"  # noqa: S608  # our own columns
        return cursor.execute(query.encode(), (runs,)).fetchall()


def state_counts(conn: psycopg.Connection) -> dict[str, int]:
    """Runs by state."""
    return dict(conn.execute("SELECT state, count(*) FROM analysis.run GROUP BY state").fetchall())


def options(conn: psycopg.Connection) -> Options:
    def distinct(column: str) -> list[Any]:
        query = f"SELECT DISTINCT {column} FROM analysis.run WHERE {column} IS NOT NULL ORDER BY 1 LIMIT 1000"  # noqa: S608  # one of three names
        return [row[0] for row in conn.execute(query.encode()).fetchall()]

    suites = dict(conn.execute(_SUITES.encode()).fetchall())
    return Options(distinct("variant"), distinct("model"), distinct("seed"), suites)


def runs(conn: psycopg.Connection, numbers: list[int]) -> list[Run]:
    """Those of these runs that there are, by number."""
    with conn.cursor(row_factory=class_row(Run)) as cursor:
        return cursor.execute(RUNS.encode(), {"runs": numbers}).fetchall()


def of_jobs(conn: psycopg.Connection, jobs: list[int]) -> list[int]:
    """Numbers of the runs that these jobs train."""
    rows = conn.execute("SELECT id FROM analysis.run WHERE job_id = ANY(%s) ORDER BY id", (jobs,)).fetchall()
    return [row[0] for row in rows]


def recent(conn: psycopg.Connection, limit: int = 300) -> list[RunLine]:
    """The newest runs, for pickers."""
    return run_page(conn, Filters(), limit=limit).lines
