"""Summaries of a job's rows, computed in the database: one statement per metric fills head, layer and job.

What counts where: ``n`` counts every row; NaN is undefined, counted apart and in no statistic. Mean and standard
deviation are those of the finite values. Minimum, maximum and quantiles are over all defined values, infinities
included: a head whose median D_a is infinite is not made to look finite by dropping its largest values. Quantiles
interpolate linearly; between a finite and an infinite value they are infinite. Histograms count defined values in
the fixed bins of the metric; what lies outside, infinities too, is in the first or last bin.
"""

from collections.abc import Iterable

from psycopg import Connection, sql

from services.contracts.tables import SummaryMetric

# The sorts of one statement; below that they go through files, which took a third longer at 5 million rows.
_WORK_MEM = "128MB"

# Infinities enter percentile_cont as ±1e300: it interpolates with plain arithmetic, and Infinity - Infinity is NaN.
# Beyond 1e280 a quantile is an infinity that interpolation diluted; no metric has finite values so large.
# Layer and head are -1 where all are taken together, since NULLs do not join.
_COMPUTE = """
INSERT INTO keyhole.summary (job_id, metric, layer, head, n, n_infinite, n_undefined, mean, sd, minimum,
    q01, q05, q25, median, q75, q95, q99, maximum, histogram_low, histogram_width, histogram)
WITH value AS (
    SELECT layer, head, coalesce(({expression})::float8, 'NaN') AS v FROM keyhole.{table} WHERE job_id = {job}
), statistic AS (
    SELECT coalesce(layer, -1) AS layer, coalesce(head, -1) AS head, count(*) AS n,
        count(*) FILTER (WHERE v IN ('Infinity', '-Infinity')) AS n_infinite,
        count(*) FILTER (WHERE v = 'NaN') AS n_undefined,
        avg(v) FILTER (WHERE v < 'Infinity' AND v > '-Infinity') AS mean,
        stddev_samp(v) FILTER (WHERE v < 'Infinity' AND v > '-Infinity') AS sd,
        min(v) FILTER (WHERE v <> 'NaN') AS minimum,
        max(v) FILTER (WHERE v <> 'NaN') AS maximum,
        percentile_cont(ARRAY[0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
            WITHIN GROUP (ORDER BY least(greatest(v, -1e300), 1e300)) FILTER (WHERE v <> 'NaN') AS raw
    FROM value GROUP BY GROUPING SETS ((layer, head), (layer), ())
), counted AS (
    SELECT layer, head, least(greatest(floor((v - {low}) / {width}), 0), {bins} - 1)::integer AS bin, count(*) AS n
    FROM value WHERE v <> 'NaN' GROUP BY layer, head, bin
), bin_count AS (
    SELECT coalesce(layer, -1) AS layer, coalesce(head, -1) AS head, bin, sum(n)::bigint AS n
    FROM counted GROUP BY GROUPING SETS ((layer, head, bin), (layer, bin), (bin))
), histogram AS (
    SELECT layer, head, array_agg(coalesce(n, 0) ORDER BY bin) AS counts
    FROM (SELECT layer, head, bin FROM statistic, generate_series(0, {bins} - 1) AS bin) AS every_bin
    LEFT JOIN bin_count USING (layer, head, bin) GROUP BY layer, head
), quantile AS (
    SELECT layer, head, array_agg(
        CASE WHEN abs(place) > 1e280 THEN sign(place) * 'Infinity'::float8 ELSE place END ORDER BY index) AS q
    FROM statistic, unnest(raw) WITH ORDINALITY AS unrolled (place, index) GROUP BY layer, head
)
SELECT {job}, {name}, nullif(layer, -1), nullif(head, -1), statistic.n, n_infinite, n_undefined, mean, sd, minimum,
    q[1], q[2], q[3], q[4], q[5], q[6], q[7], maximum, {low}, {width}, counts
FROM statistic JOIN histogram USING (layer, head) LEFT JOIN quantile USING (layer, head)
"""


def compute(conn: Connection, job_id: int, metrics: Iterable[SummaryMetric]) -> int:
    """Replace the job's summaries of these metrics; returns the rows written. One transaction; repeatable.

    Measured on two cores: 5.3 million rows, 28 layers of 12 heads, 8 s for a metric.
    """
    written = 0
    with conn.transaction():
        conn.execute(sql.SQL("SET LOCAL work_mem = {}").format(sql.Literal(_WORK_MEM)))
        for metric in metrics:
            conn.execute("DELETE FROM keyhole.summary WHERE job_id = %s AND metric = %s", (job_id, metric.name))
            statement = sql.SQL(_COMPUTE).format(
                expression=sql.SQL(metric.expression),  # type: ignore[arg-type]  # from the contracts
                table=sql.Identifier(metric.table),
                job=sql.Literal(job_id),
                name=sql.Literal(metric.name),
                low=sql.Literal(float(metric.low)),
                width=sql.Literal(float(metric.width)),
                bins=sql.Literal(metric.bins),
            )
            written += conn.execute(statement).rowcount
    return written
