"""Checkpoints of a pattern_stability job and the distances between their attention patterns."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row

from dashboard.stability import Checkpoint, by_run_and_step

CHECKPOINTS = """
SELECT number, run, step, model FROM analysis.pattern_checkpoint
WHERE job_id = %(job)s ORDER BY number"""

# of each name of a run the run of the laboratory that has most of these checkpoints: equal models, such as two variants
# at step 0 of one seed, are of several
RUNS = """
SELECT DISTINCT ON (listed.run) listed.run AS name, checkpoint.run_id
FROM analysis.pattern_checkpoint AS listed
JOIN analysis.job_model USING (job_id, number)
JOIN analysis.checkpoint ON checkpoint.identity = job_model.model_identity AND checkpoint.step = listed.step
WHERE listed.job_id = %(job)s
GROUP BY listed.run, checkpoint.run_id ORDER BY listed.run, count(*) DESC, checkpoint.run_id"""

# one row for each layer and pair: 30 layers of 64 checkpoints are 60,000
LAYER_DISTANCES = """
SELECT layer, first, second, {index} AS by_index, {assignment} AS by_assignment FROM analysis.pattern_stability
WHERE job_id = %(job)s ORDER BY layer, first, second"""

HEAD_DISTANCES = """
SELECT layer, head, avg({index}) AS by_index, max(paired_head) AS paired_head, avg({assignment}) AS by_assignment
FROM analysis.pattern_distance
WHERE job_id = %(job)s AND first = %(first)s AND second = %(second)s
GROUP BY layer, head ORDER BY layer, head"""


@dataclass(frozen=True)
class LayerDistance:
    """Mean over the heads and sequences of a layer."""

    layer: int
    first: int
    second: int
    by_index: float
    by_assignment: float


@dataclass(frozen=True)
class HeadDistance:
    """Mean over sequences, of a head of the first checkpoint; ``paired_head`` is one of the second."""

    layer: int
    head: int
    by_index: float
    paired_head: int
    by_assignment: float


def with_measure(query: str, measure: str) -> str:
    """LAYER_DISTANCES or HEAD_DISTANCES of one measure: js_nats, total_variation or cosine."""
    return query.format(index=measure, assignment=f"paired_{measure}")


def checkpoints(conn: psycopg.Connection, job_id: int) -> list[Checkpoint]:
    """By run and step."""
    with conn.cursor(row_factory=class_row(Checkpoint)) as cursor:
        return sorted(cursor.execute(CHECKPOINTS, {"job": job_id}).fetchall(), key=by_run_and_step)


def runs(conn: psycopg.Connection, job_id: int) -> list[int]:
    """Numbers of the training runs that the job's checkpoints are of."""
    return sorted({row[1] for row in conn.execute(RUNS, {"job": job_id}).fetchall()})


def layer_distances(conn: psycopg.Connection, job_id: int, measure: str) -> Sequence[LayerDistance]:
    with conn.cursor(row_factory=class_row(LayerDistance)) as cursor:
        return cursor.execute(with_measure(LAYER_DISTANCES, measure).encode(), {"job": job_id}).fetchall()


def head_distances(
    conn: psycopg.Connection, job_id: int, first: int, second: int, measure: str
) -> Sequence[HeadDistance]:
    values = {"job": job_id, "first": first, "second": second}
    with conn.cursor(row_factory=class_row(HeadDistance)) as cursor:
        return cursor.execute(with_measure(HEAD_DISTANCES, measure).encode(), values).fetchall()
