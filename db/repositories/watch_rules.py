"""What rules of watches remember, and the numbers they are applied to. Call with the watch's row held."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import Connection, sql
from psycopg.types.json import Jsonb

# A rule that has fallen far behind catches up in several looks.
MOST_ROWS = 50_000


@dataclass(frozen=True)
class Place:
    """Where a number is measured."""

    layer: int | None = None
    head: int | None = None
    matrix: str | None = None


@dataclass(frozen=True)
class Remembered:
    step: int  # last that was judged
    memory: Mapping[str, Any]


def remembered(conn: Connection, watch_id: int) -> dict[tuple[int, int], Remembered]:
    """By rule and run."""
    rows = conn.execute("SELECT rule, run_id, step, memory FROM keyhole.watch_rule WHERE watch_id = %s", (watch_id,))
    return {(rule, run_id): Remembered(step, memory) for rule, run_id, step, memory in rows}


def remember(conn: Connection, watch_id: int, rule: int, run_id: int, new: Remembered) -> None:
    conn.execute(
        "INSERT INTO keyhole.watch_rule VALUES (%s, %s, %s, %s, %s) ON CONFLICT (watch_id, rule, run_id) "
        "DO UPDATE SET step = excluded.step, memory = excluded.memory",
        (watch_id, rule, run_id, new.step, Jsonb(dict(new.memory))),
    )


def met_at(conn: Connection, watch_id: int) -> dict[tuple[int, int | None], set[Place]]:
    """By rule and run, where it is met now."""
    found: dict[tuple[int, int | None], set[Place]] = {}
    for rule, run_id, layer, head, matrix in conn.execute(
        "SELECT rule, run_id, layer, head, matrix FROM keyhole.watch_crossing WHERE watch_id = %s", (watch_id,)
    ):
        found.setdefault((rule, run_id), set()).add(Place(layer, head, matrix))
    return found


def recovered(conn: Connection, watch_id: int, rule: int, run_id: int | None, places: Iterable[Place]) -> None:
    with conn.cursor() as cursor:
        cursor.executemany(
            """
            DELETE FROM keyhole.watch_crossing WHERE watch_id = %s AND rule = %s AND run_id IS NOT DISTINCT FROM %s
              AND layer IS NOT DISTINCT FROM %s AND head IS NOT DISTINCT FROM %s AND matrix IS NOT DISTINCT FROM %s
            """,
            [(watch_id, rule, run_id, each.layer, each.head, each.matrix) for each in places],
        )


def met(
    conn: Connection,
    watch_id: int,
    rule: int,
    run_id: int | None,
    places: Mapping[Place, tuple[int | None, float]],
) -> None:
    """Store where the rule is met from now on, with step and value."""
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO keyhole.watch_crossing (watch_id, rule, run_id, matrix, layer, head, step, value) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [
                (watch_id, rule, run_id, each.matrix, each.layer, each.head, step, value)
                for each, (step, value) in places.items()
            ],
        )


def summary_values(
    conn: Connection, job_id: int, metric: str, level: str, statistic: str
) -> list[tuple[int | None, int | None, float]]:
    """(layer, head, value) of a job's summaries at one level; undefined ones are left out."""
    query = sql.SQL(
        """
        SELECT layer, head, {statistic} FROM keyhole.summary
        WHERE job_id = %s AND metric = %s AND {statistic} IS NOT NULL AND {statistic} <> 'NaN'
          AND %s = CASE WHEN layer IS NULL THEN 'model' WHEN head IS NULL THEN 'layer' ELSE 'head' END
        ORDER BY layer, head
        """
    ).format(statistic=sql.Identifier(statistic))
    return conn.execute(query, (job_id, metric, level)).fetchall()


_LEVELS: dict[str, LiteralString] = {
    "head": "head IS NOT NULL",
    "layer": "layer IS NOT NULL AND head IS NULL",
    "model": "layer IS NULL AND head IS NULL",
}


def metric_values(
    conn: Connection, run_id: int, metric: str, level: str, after: int
) -> list[tuple[int, int | None, int | None, float]]:
    """(step, layer, head, value) of a run's numbers after a step, by step; the steps are whole."""
    rows = conn.execute(
        f"SELECT step, layer, head, value FROM keyhole.training_metric WHERE run_id = %s AND metric = %s AND step > %s "  # noqa: S608  # a condition written above
        f"AND {_LEVELS[level]} ORDER BY step, layer, head LIMIT %s",
        (run_id, metric, after, MOST_ROWS),
    ).fetchall()
    return _whole_steps(rows)


def sigma_values(
    conn: Connection, run_id: int, column: str, matrix: str | None, after: int
) -> list[tuple[int, int | None, str, float]]:
    """(step, layer, matrix, sigma) of weights (``weight_sigma``) or updates (``update_sigma``), likewise."""
    query = sql.SQL(
        "SELECT step, layer, matrix, {column} FROM keyhole.training_matrix WHERE run_id = %(run)s AND step > %(after)s "
        "AND {column} IS NOT NULL AND (%(matrix)s::text IS NULL OR matrix = %(matrix)s) "
        "ORDER BY step, layer, matrix LIMIT %(most)s"
    ).format(column=sql.Identifier(column))
    values = {"run": run_id, "after": after, "matrix": matrix, "most": MOST_ROWS}
    return _whole_steps(conn.execute(query, values).fetchall())


def _whole_steps(rows: list[Any]) -> list[Any]:
    """Without the last step if the rows were cut in it."""
    if len(rows) < MOST_ROWS:
        return rows
    last = rows[-1][0]
    return [row for row in rows if row[0] < last]
