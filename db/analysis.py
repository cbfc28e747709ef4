"""The schema ``analysis``: all that analysts see, made anew from this code at every upgrade.

Views come from db/views/*.sql; those over per-query tables, metrics and summaries are generated, with the
comments of their contracts. The whole is one transaction, so a reader sees the old schema or the new one.
"""

import hashlib
from pathlib import Path

from psycopg import Connection, sql

from services.contracts.kinds import KINDS, result_tables
from services.contracts.tables import ResultTable

SCHEMA_COMMENT = "What analysts read: views over jobs, their rows and their summaries."
_VIEWS = Path(__file__).parent / "views"

# level: (columns of its key besides job_id and metric, condition, comment)
_LEVELS = {
    "head_summary": (("layer", "head"), "head IS NOT NULL", "Distribution of each metric within each head of a job."),
    "layer_summary": (
        ("layer",),
        "layer IS NOT NULL AND head IS NULL",
        "Distribution of each metric within each layer of a job, all its heads together.",
    ),
    "job_summary": ((), "layer IS NULL", "Distribution of each metric over all rows of a job."),
}
SUMMARY_COMMENT = "Distribution of each metric by head, by layer (head NULL) and for the job (layer NULL too)."
_SUMMARY_KEY = {
    "job_id": "the job",
    "layer": "layer, 0-based",
    "head": "query head, 0-based",
    "metric": "name of the metric; see the view metric",
}
_METRIC_COMMENT = "Metrics of head_summary, layer_summary and job_summary; kinds may share a name: join by kind too."
_METRIC_COLUMNS = {
    "kind": "kind of the jobs that have it",
    "metric": "name of the metric",
    "table_name": "view of the rows that it is taken of",
    "meaning": "what it is of each row, with its unit",
    "histogram_low": "lower edge of the first bin of its histograms",
    "histogram_width": "width of every bin",
    "bins": "number of bins; values outside are in the first or last",
}
SUMMARY_STATISTICS = {
    "n": "number of rows, undefined and infinite ones included",
    "n_infinite": "rows whose value is Infinity or -Infinity",
    "n_undefined": "rows whose value is NaN",
    "mean": "mean of the finite values",
    "sd": "sample standard deviation of the finite values",
    "minimum": "smallest value; like all quantiles over every defined value, so it can be infinite",
    "q01": "1 % quantile, interpolated linearly; infinite if a neighbour of its place is",
    "q05": "5 % quantile",
    "q25": "25 % quantile",
    "median": "median; of an even number of values the mean of the middle two",
    "q75": "75 % quantile",
    "q95": "95 % quantile",
    "q99": "99 % quantile",
    "maximum": "largest value; can be infinite",
    "histogram_low": "lower edge of the first bin",
    "histogram_width": "width of every bin",
    "histogram": "counts of defined values by bin; those outside, infinite ones too, are in the first or last bin",
}


def install(conn: Connection) -> None:
    """Make the schema what this code says; a schema that already is stays untouched, and its readers undisturbed."""
    schema = statements()
    digest = hashlib.sha256("\n".join(schema).encode()).hexdigest()
    comment = f"{SCHEMA_COMMENT} Version {digest[:16]}."
    row = conn.execute("SELECT obj_description(to_regnamespace('analysis'), 'pg_namespace')").fetchone()
    if row is not None and row[0] == comment:
        return
    with conn.transaction():
        for statement in schema:
            conn.execute(statement)  # type: ignore[arg-type]  # our own files and contracts
        conn.execute(sql.SQL("COMMENT ON SCHEMA analysis IS {}").format(sql.Literal(comment)))


def statements() -> list[str]:
    """All that makes the schema, in order: the views with their comments, as SQL."""
    generated: list[sql.Composed] = []
    for table in result_tables().values():
        generated += _result_view(table)
    generated += _metric_view()
    for level in _LEVELS:
        generated += _summary_view(level)
    generated += _comments("TABLE", "keyhole", "summary", SUMMARY_COMMENT, _SUMMARY_KEY | SUMMARY_STATISTICS)
    files = [path.read_text(encoding="utf-8") for path in sorted(_VIEWS.glob("*.sql"))]
    return [
        "DROP SCHEMA IF EXISTS analysis CASCADE; CREATE SCHEMA analysis",
        *files,
        *(statement.as_string() for statement in generated),
    ]


def _result_view(table: ResultTable) -> list[sql.Composed]:
    """View and comments of a per-query table; the table itself gets the same comments."""
    columns = {column.name: column.comment for column in table.columns}
    view = sql.SQL("CREATE VIEW analysis.{name} AS SELECT {columns} FROM keyhole.{name}").format(
        name=sql.Identifier(table.name), columns=sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    return [
        view,
        *_comments("VIEW", "analysis", table.name, table.comment, columns),
        *_comments("TABLE", "keyhole", table.name, table.comment, columns),
    ]


def _metric_view() -> list[sql.Composed]:
    """The metrics of all kinds as rows."""
    row = sql.SQL("({}, {}, {}, {}, {}::float8, {}::float8, {})")
    rows = [
        row.format(*map(sql.Literal, (kind.name, each.name, each.table, each.comment, each.low, each.width, each.bins)))
        for kind in KINDS.values()
        for each in kind.metrics
    ]
    view = sql.SQL("CREATE VIEW analysis.metric ({}) AS VALUES {}").format(
        sql.SQL(", ").join(map(sql.Identifier, _METRIC_COLUMNS)), sql.SQL(", ").join(rows)
    )
    return [view, *_comments("VIEW", "analysis", "metric", _METRIC_COMMENT, _METRIC_COLUMNS)]


def _summary_view(level: str) -> list[sql.Composed]:
    key, condition, comment = _LEVELS[level]
    columns = {name: text for name, text in _SUMMARY_KEY.items() if name in ("job_id", *key, "metric")}
    columns |= SUMMARY_STATISTICS
    view = sql.SQL("CREATE VIEW analysis.{} AS SELECT {} FROM keyhole.summary WHERE {}").format(
        sql.Identifier(level),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(condition),  # type: ignore[arg-type]  # a literal above
    )
    return [view, *_comments("VIEW", "analysis", level, comment, columns)]


def _comments(what: str, schema: str, name: str, comment: str, columns: dict[str, str]) -> list[sql.Composed]:
    relation = sql.Identifier(schema, name)
    head = sql.SQL("COMMENT ON " + what + " {} IS {}")  # type: ignore[arg-type]  # VIEW or TABLE
    return [head.format(relation, sql.Literal(comment))] + [
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(relation, sql.Identifier(column), sql.Literal(text))
        for column, text in columns.items()
    ]
