"""Numbers of runs by step, never more points than a chart draws.

Long series are cut into stretches of equally many rows, of which the lowest and the highest stay: spikes are never
averaged away. Means over runs are taken of the means of stretches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

MOST_POINTS = 5000  # in one chart
MOST_COLUMNS = 200  # steps of a map of layers

Level = Literal["model", "layers"] | int
"""The model's own row, the mean over layers of theirs, or one layer."""


@dataclass(frozen=True)
class Metric:
    """A name, and whether there are rows of it for the model, for layers and for heads."""

    name: str
    of_model: bool
    of_layers: bool
    of_heads: bool


@dataclass(frozen=True)
class Point:
    run_id: int
    layer: int | None
    step: int
    value: float


@dataclass(frozen=True)
class GroupPoint:
    """Over the runs of one group: ``sd`` is None where a single one has the step."""

    number: int  # of the group
    step: int
    runs: int
    mean: float
    sd: float | None
    low: float
    high: float


@dataclass(frozen=True)
class GroupLayer:
    """One layer over the runs of a group."""

    number: int  # of the group
    layer: int
    runs: int
    mean: float
    sd: float | None
    low: float
    high: float


@dataclass(frozen=True)
class OverSteps:
    """One metric over all layers and steps of a run."""

    run_id: int
    metric: str
    rows: int
    mean: float
    largest: float


@dataclass(frozen=True)
class LayerCell:
    layer: int
    step: int
    value: float


@dataclass(frozen=True)
class HeadValue:
    run_id: int
    layer: int
    head: int
    value: float


METRICS = """
WITH RECURSIVE named AS (
    SELECT asked.run_id, (SELECT min(row.metric) FROM analysis.training_metric AS row
                          WHERE row.run_id = asked.run_id) AS metric
    FROM unnest(%(runs)s) AS asked (run_id)
    UNION ALL
    SELECT run_id, (SELECT min(row.metric) FROM analysis.training_metric AS row
                    WHERE row.run_id = named.run_id AND row.metric > named.metric)
    FROM named WHERE metric IS NOT NULL)
SELECT metric AS name,
       bool_or(EXISTS (SELECT FROM analysis.training_metric AS row WHERE row.run_id = named.run_id
                       AND row.metric = named.metric AND layer IS NULL AND head IS NULL)) AS of_model,
       bool_or(EXISTS (SELECT FROM analysis.training_metric AS row WHERE row.run_id = named.run_id
                       AND row.metric = named.metric AND layer = 0 AND head IS NULL)) AS of_layers,
       bool_or(EXISTS (SELECT FROM analysis.training_metric AS row WHERE row.run_id = named.run_id
                       AND row.metric = named.metric AND layer = 0 AND head = 0)) AS of_heads
FROM named WHERE metric IS NOT NULL GROUP BY metric ORDER BY metric"""

_MODEL = """SELECT run_id, layer, step, value FROM analysis.training_metric
    WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND layer IS NULL AND head IS NULL AND step >= %(start)s"""
_ONE_LAYER = """SELECT run_id, layer, step, value FROM analysis.training_metric
    WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND layer = %(layer)s AND head IS NULL AND step >= %(start)s"""
_MEAN_OF_LAYERS = """SELECT run_id, NULL::smallint AS layer, step, avg(value) AS value FROM analysis.training_metric
    WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND layer IS NOT NULL AND head IS NULL AND step >= %(start)s
    GROUP BY run_id, step"""
EVERY_LAYER = """SELECT run_id, layer, step, value FROM analysis.training_metric
    WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND layer IS NOT NULL AND head IS NULL AND step >= %(start)s"""

_LESS_REFERENCE = """SELECT measured.run_id, measured.layer, measured.step, measured.value - reference.value AS value
    FROM ({rows}) AS measured
    JOIN (SELECT step, avg(value) AS value FROM ({rows}) AS every
          WHERE run_id = ANY(%(reference)s) GROUP BY step) AS reference USING (step)
    WHERE measured.run_id = ANY(%(shown)s)"""

_THINNED = """
WITH placed AS (
    SELECT run_id, layer, step, value,
           (row_number() OVER (PARTITION BY run_id, layer ORDER BY step) - 1) * %(stretches)s
           / count(*) OVER (PARTITION BY run_id, layer) AS stretch
    FROM ({rows}) AS measured),
ranked AS (
    SELECT run_id, layer, step, value,
           row_number() OVER (PARTITION BY run_id, layer, stretch ORDER BY value, step) AS lowest,
           row_number() OVER (PARTITION BY run_id, layer, stretch ORDER BY value DESC, step) AS highest
    FROM placed)
SELECT run_id, layer, step, value FROM ranked WHERE lowest = 1 OR highest = 1 ORDER BY run_id, layer, step"""

_GROUPED = """
WITH measured AS MATERIALIZED ({rows}),
placed AS (
    SELECT step, (row_number() OVER (ORDER BY step) - 1) * %(stretches)s / count(*) OVER () AS stretch
    FROM (SELECT DISTINCT step FROM measured) AS steps),
of_run AS (
    SELECT run_id, stretch, max(step) AS step, avg(value) AS value
    FROM measured JOIN placed USING (step) GROUP BY run_id, stretch)
SELECT number, max(step) AS step, count(*) AS runs, avg(value) AS mean, stddev_samp(value) AS sd,
       min(value) AS low, max(value) AS high
FROM of_run JOIN unnest(%(members)s, %(groups)s) AS member (run_id, number) USING (run_id)
GROUP BY number, stretch ORDER BY number, step"""

LAYER_MAP = """
WITH measured AS MATERIALIZED (
    SELECT layer, step, value FROM analysis.training_metric
    WHERE run_id = %(run)s AND metric = %(metric)s AND layer IS NOT NULL AND head IS NULL AND step >= %(start)s),
placed AS (
    SELECT step, (row_number() OVER (ORDER BY step) - 1) * %(columns)s / count(*) OVER () AS stretch
    FROM (SELECT DISTINCT step FROM measured) AS steps)
SELECT layer, max(step) AS step, avg(value) AS value
FROM measured JOIN placed USING (step) GROUP BY layer, stretch ORDER BY step, layer"""

LAYER_STEPS = """
SELECT DISTINCT step FROM analysis.training_metric
WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND layer = 0 AND head IS NULL ORDER BY step"""

GROUP_LAYERS = """
SELECT number, layer, count(*) AS runs, avg(value) AS mean, stddev_samp(value) AS sd,
       min(value) AS low, max(value) AS high
FROM analysis.training_metric JOIN unnest(%(members)s, %(groups)s) AS member (run_id, number) USING (run_id)
WHERE run_id = ANY(%(members)s) AND metric = %(metric)s AND step = %(step)s AND layer IS NOT NULL AND head IS NULL
GROUP BY number, layer ORDER BY number, layer"""

OVER_STEPS = """
SELECT run_id, metric, count(*) AS rows, avg(value) AS mean, max(value) AS largest
FROM analysis.training_metric
WHERE run_id = ANY(%(runs)s) AND metric = ANY(%(metrics)s) AND layer IS NOT NULL AND head IS NULL
GROUP BY run_id, metric ORDER BY run_id, metric"""

HEAD_STEPS = """
SELECT step FROM analysis.training_metric
WHERE run_id = %(run)s AND metric = %(metric)s AND layer = 0 AND head = 0 ORDER BY step"""

HEADS = """
SELECT run_id, layer, head, value FROM analysis.training_metric
WHERE run_id = ANY(%(runs)s) AND metric = %(metric)s AND step = %(step)s AND layer IS NOT NULL AND head IS NOT NULL
ORDER BY run_id, layer, head"""


def metrics(conn: psycopg.Connection, runs: Sequence[int]) -> list[Metric]:
    """Every metric that any of the runs has rows of."""
    with conn.cursor(row_factory=class_row(Metric)) as cursor:
        return cursor.execute(METRICS.encode(), {"runs": list(runs)}).fetchall()


def _rows(level: Level) -> str:
    return {"model": _MODEL, "layers": _MEAN_OF_LAYERS}.get(level, _ONE_LAYER) if isinstance(level, str) else _ONE_LAYER


@dataclass(frozen=True)
class Asked:
    """Which numbers: a metric of runs at a level, from a step on, less the mean of reference runs at the same steps."""

    runs: Sequence[int]
    metric: str
    level: Level = "model"
    start: int = 0
    reference: Sequence[int] = ()

    @property
    def rows(self) -> str:
        rows = _rows(self.level)
        return _LESS_REFERENCE.format(rows=rows) if self.reference else rows

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "runs": [*dict.fromkeys([*self.runs, *self.reference])],
            "metric": self.metric,
            "start": self.start,
        }
        if isinstance(self.level, int):
            found["layer"] = self.level
        if self.reference:
            found |= {"reference": list(self.reference), "shown": list(self.runs)}
        return found


def curves_sql(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Statement and values of ``curves``."""
    return thinned(asked.rows, asked.values, series=len(asked.runs))


def thinned(rows: str, values: dict[str, Any], series: int) -> tuple[str, dict[str, Any]]:
    """A statement of (run_id, layer, step, value) without what ``series`` lines of a chart need not draw."""
    return _THINNED.format(rows=rows), values | {"stretches": max(1, MOST_POINTS // (2 * max(1, series)))}


def curves(conn: psycopg.Connection, asked: Asked) -> list[Point]:
    """By run and step."""
    return points(conn, *curves_sql(asked))


def points(conn: psycopg.Connection, statement: str, values: dict[str, Any]) -> list[Point]:
    with conn.cursor(row_factory=class_row(Point)) as cursor:
        return cursor.execute(statement.encode(), values).fetchall()


def group_curves_sql(asked: Asked, groups: Sequence[Sequence[int]]) -> tuple[str, dict[str, Any]]:
    """Statement and values of ``group_curves``."""
    stretches = max(1, MOST_POINTS // (3 * max(1, len(groups))))  # mean and both edges of a band
    return _GROUPED.format(rows=asked.rows), asked.values | {"stretches": stretches} | _members(groups)


def _members(groups: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    pairs = [(run, number) for number, group in enumerate(groups) for run in group]
    return {"members": [run for run, _ in pairs], "groups": [number for _, number in pairs]}


def group_curves(conn: psycopg.Connection, asked: Asked, groups: Sequence[Sequence[int]]) -> list[GroupPoint]:
    """Mean and spread over the runs of each group, by group and step."""
    statement, values = group_curves_sql(asked, groups)
    with conn.cursor(row_factory=class_row(GroupPoint)) as cursor:
        return cursor.execute(statement.encode(), values).fetchall()


def layer_steps(conn: psycopg.Connection, runs: Sequence[int], metric: str) -> list[int]:
    """Steps at which any of the runs has rows of layers."""
    values = {"runs": list(runs), "metric": metric}
    return [row[0] for row in conn.execute(LAYER_STEPS, values).fetchall()]


def group_layers_values(groups: Sequence[Sequence[int]], metric: str, step: int) -> dict[str, Any]:
    return _members(groups) | {"metric": metric, "step": step}


def group_layers(conn: psycopg.Connection, values: dict[str, Any]) -> list[GroupLayer]:
    """GROUP_LAYERS: every layer at one step, mean and spread over the runs of each group."""
    with conn.cursor(row_factory=class_row(GroupLayer)) as cursor:
        return cursor.execute(GROUP_LAYERS.encode(), values).fetchall()


def over_steps(conn: psycopg.Connection, runs: Sequence[int], metrics: Sequence[str]) -> list[OverSteps]:
    values = {"runs": list(runs), "metrics": list(metrics)}
    with conn.cursor(row_factory=class_row(OverSteps)) as cursor:
        return cursor.execute(OVER_STEPS.encode(), values).fetchall()


def layer_curves_sql(run: int, metric: str, start: int, layers: int) -> tuple[str, dict[str, Any]]:
    """Statement and values for ``points``: every layer of one run."""
    return thinned(EVERY_LAYER, {"runs": [run], "metric": metric, "start": start}, series=layers)


def layer_map_values(run: int, metric: str, start: int, layers: int) -> dict[str, Any]:
    return {"run": run, "metric": metric, "start": start, "columns": min(MOST_COLUMNS, MOST_POINTS // max(1, layers))}


def layer_map(conn: psycopg.Connection, values: dict[str, Any]) -> list[LayerCell]:
    """Layer by step, of stretches of steps the mean where there are more than a map shows."""
    with conn.cursor(row_factory=class_row(LayerCell)) as cursor:
        return cursor.execute(LAYER_MAP.encode(), values).fetchall()


def layer_count(conn: psycopg.Connection, runs: Sequence[int], metric: str) -> int:
    """Largest number of layers of any of the runs; 0 without rows."""
    row = conn.execute(
        """SELECT max((SELECT max(layer) FROM analysis.training_metric AS row
                       WHERE row.run_id = asked.run_id AND row.metric = %(metric)s))
           FROM unnest(%(runs)s) AS asked (run_id)""",
        {"runs": list(runs), "metric": metric},
    ).fetchone()
    return 0 if row is None or row[0] is None else row[0] + 1


def head_steps(conn: psycopg.Connection, run: int, metric: str) -> list[int]:
    """Steps at which there are rows of heads."""
    return [row[0] for row in conn.execute(HEAD_STEPS, {"run": run, "metric": metric}).fetchall()]


def heads(conn: psycopg.Connection, runs: Sequence[int], metric: str, step: int) -> list[HeadValue]:
    with conn.cursor(row_factory=class_row(HeadValue)) as cursor:
        return cursor.execute(HEADS.encode(), {"runs": list(runs), "metric": metric, "step": step}).fetchall()


def last_step(conn: psycopg.Connection, runs: Sequence[int], metric: str) -> int:
    """The largest step with rows of that metric for the model; 0 without rows."""
    row = conn.execute(
        "SELECT max(step) FROM analysis.training_metric "
        "WHERE run_id = ANY(%s) AND metric = %s AND layer IS NULL AND head IS NULL",
        (list(runs), metric),
    ).fetchone()
    return 0 if row is None or row[0] is None else row[0]
