"""Summaries of a job's rows, computed in the database: one statement per table fills head, layer and job.

What counts where: ``n`` counts every row; NaN is undefined, counted apart and in no statistic. Mean and standard
deviation are those of the finite values. Minimum, maximum and quantiles are over all defined values, infinities
included: a head whose median D_a is infinite is not made to look finite by dropping its largest values. Quantiles
interpolate linearly; between a finite and an infinite value they are infinite. Histograms count defined values in
the fixed bins of the metric; what lies outside, infinities too, is in the first or last bin.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import LiteralString

from psycopg import Connection, sql

from services.contracts.kinds import result_tables
from services.contracts.tables import ResultTable, SummaryMetric

# For each sort of a statement; below that they go through files, which took a third longer at 5 million rows.
_WORK_MEM = "128MB"

# Infinities enter percentile_cont as ±1e300: it interpolates with plain arithmetic, and Infinity - Infinity is NaN.
# Beyond 1e280 a quantile is an infinity that interpolation diluted; no metric has finite values so large.
# Layer and head are -32768 where all are taken together, since NULLs do not join; a table may use -1 for all layers.
# The values are not materialized: computing them twice is cheaper than writing them to a file.
_COMPUTE = """
INSERT INTO keyhole.summary (job_id, metric, layer, head, n, n_infinite, n_undefined, mean, sd, minimum,
    q01, q05, q25, median, q75, q95, q99, maximum, histogram_low, histogram_width, histogram)
WITH metric (number, name, low, width, bins) AS (
    VALUES {metrics}
), value AS NOT MATERIALIZED (
    SELECT {layer} AS layer, {head} AS head, {values} FROM keyhole.{table} WHERE job_id = {job}
), wide AS (
    SELECT coalesce(layer, {all}) AS layer, coalesce(head, {all}) AS head, count(*) AS n, {aggregates}
    FROM value GROUP BY GROUPING SETS ({sets})
), statistic AS (
    SELECT layer, head, n, long.*
    FROM wide CROSS JOIN LATERAL (VALUES {columns})
        AS long (number, n_infinite, n_undefined, mean, sd, minimum, maximum, raw)
), counted AS (
    {counts}
), bin_count AS (
    SELECT number, coalesce(layer, {all}) AS layer, coalesce(head, {all}) AS head, bin, sum(n)::bigint AS n
    FROM counted GROUP BY GROUPING SETS ({sets_of_bins})
), histogram AS (
    SELECT number, layer, head, array_agg(coalesce(bin_count.n, 0) ORDER BY bin) AS counts
    FROM (
        SELECT number, layer, head, bin FROM statistic JOIN metric USING (number), generate_series(0, bins - 1) AS bin
    ) AS every_bin
    LEFT JOIN bin_count USING (number, layer, head, bin) GROUP BY number, layer, head
), quantile AS (
    SELECT number, layer, head, array_agg(
        CASE WHEN abs(place) > 1e280 THEN sign(place) * 'Infinity'::float8 ELSE place END ORDER BY index) AS q
    FROM statistic, unnest(raw) WITH ORDINALITY AS unrolled (place, index) GROUP BY number, layer, head
)
SELECT {job}, name, nullif(layer, {all}), nullif(head, {all}), statistic.n, n_infinite, n_undefined, mean, sd, minimum,
    q[1], q[2], q[3], q[4], q[5], q[6], q[7], maximum, low, width, counts
FROM statistic JOIN metric USING (number) JOIN histogram USING (number, layer, head)
LEFT JOIN quantile USING (number, layer, head)
"""
# the parts of it that are repeated for each metric
_METRIC = "({number}, {name}, {low}, {width}, {bins})"
_VALUE = "coalesce(({expression})::float8, 'NaN') AS {v}"
_AGGREGATES = """
    count(*) FILTER (WHERE {v} IN ('Infinity', '-Infinity')) AS {n_infinite},
    count(*) FILTER (WHERE {v} = 'NaN') AS {n_undefined},
    avg({v}) FILTER (WHERE {v} < 'Infinity' AND {v} > '-Infinity') AS {mean},
    stddev_samp({v}) FILTER (WHERE {v} < 'Infinity' AND {v} > '-Infinity') AS {sd},
    min({v}) FILTER (WHERE {v} <> 'NaN') AS {minimum},
    max({v}) FILTER (WHERE {v} <> 'NaN') AS {maximum},
    percentile_cont(ARRAY[0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
        WITHIN GROUP (ORDER BY least(greatest({v}, -1e300), 1e300)) FILTER (WHERE {v} <> 'NaN') AS {raw}"""
_COLUMNS = "({number}, {n_infinite}, {n_undefined}, {mean}, {sd}, {minimum}, {maximum}, {raw})"
_COUNTS = """
    SELECT {number} AS number, layer, head,
        least(greatest(floor(({v} - {low}) / {width}), 0), {bins} - 1)::integer AS bin, count(*) AS n
    FROM value WHERE {v} <> 'NaN' GROUP BY layer, head, bin"""


def compute(conn: Connection, job_id: int, metrics: Iterable[SummaryMetric]) -> int:
    """Replace the job's summaries of these metrics; returns the rows written. One transaction; repeatable.

    Measured on two cores that had other work too: 30 s for 5.3 million rows, 336 heads and three metrics; a statement
    per metric took 37 s. Nearly all of it is sorting, three times per metric for the exact quantiles of three levels.
    """
    by_table: dict[str, list[SummaryMetric]] = defaultdict(list)
    for metric in metrics:
        by_table[metric.table].append(metric)
    written = 0
    with conn.transaction():
        conn.execute(sql.SQL("SET LOCAL work_mem = {}").format(sql.Literal(_WORK_MEM)))
        for table, of_table in by_table.items():
            names = [metric.name for metric in of_table]
            conn.execute("DELETE FROM keyhole.summary WHERE job_id = %s AND metric = ANY(%s)", (job_id, names))
            written += conn.execute(_statement(job_id, result_tables()[table], of_table)).rowcount
    return written


# Levels of a table by how many of layer and head it has; one that it lacks is NULL, and grouped by that. The same with
# the bins of histograms.
_SETS = ("(layer, head)", "(layer, head), ()", "(layer, head), (layer), ()")
_SETS_OF_BINS = (
    "(number, layer, head, bin)",
    "(number, layer, head, bin), (number, bin)",
    "(number, layer, head, bin), (number, layer, bin), (number, bin)",
)
_ALL = -32768


def _statement(job_id: int, table: ResultTable, metrics: list[SummaryMetric]) -> sql.Composed:
    has_layer, has_head = "layer" in table.key, "head" in table.key
    absent = sql.SQL("NULL::smallint")

    def repeated(part: LiteralString, separator: LiteralString) -> sql.Composed:
        return sql.SQL(separator).join(
            sql.SQL(part).format(**_names(number, metric)) for number, metric in enumerate(metrics)
        )

    return sql.SQL(_COMPUTE).format(
        table=sql.Identifier(table.name),
        layer=sql.Identifier("layer") if has_layer else absent,
        head=sql.Identifier("head") if has_head else absent,
        all=sql.Literal(_ALL),
        sets=sql.SQL(_SETS[has_layer + has_head]),
        sets_of_bins=sql.SQL(_SETS_OF_BINS[has_layer + has_head]),
        job=sql.Literal(job_id),
        metrics=repeated(_METRIC, ", "),
        values=repeated(_VALUE, ", "),
        aggregates=repeated(_AGGREGATES, ", "),
        columns=repeated(_COLUMNS, ", "),
        counts=repeated(_COUNTS, "\n    UNION ALL"),
    )


def _names(number: int, metric: SummaryMetric) -> dict[str, sql.Composable]:
    """What stands in the braces of the repeated parts."""
    columns = ("v", "n_infinite", "n_undefined", "mean", "sd", "minimum", "maximum", "raw")
    return {column: sql.Identifier(f"{column}_{number}") for column in columns} | {
        "expression": sql.SQL(metric.expression),  # type: ignore[arg-type]  # from the contracts
        "number": sql.Literal(number),
        "name": sql.Literal(metric.name),
        "low": sql.SQL("{}::float8").format(sql.Literal(metric.low)),
        "width": sql.SQL("{}::float8").format(sql.Literal(metric.width)),
        "bins": sql.Literal(metric.bins),
    }
