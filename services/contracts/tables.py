"""How a result table is described once, for the writer, the migration test, the export and the documentation."""

from dataclasses import dataclass
from typing import Literal

ColumnType = Literal["int2", "int4", "int8", "float4", "float8", "bool"]


@dataclass(frozen=True)
class Column:
    name: str
    type: ColumnType
    comment: str  # meaning, unit and range; becomes the column's COMMENT and its line in docs/sql.md


@dataclass(frozen=True)
class ResultTable:
    """A table of rows that jobs measure, partitioned by job.

    ``columns`` are in table order: JOB first, then those of LAYER, HEAD, SEQUENCE and QUERY that the table has, in
    this order, then the rest. Every shard writes its rows sorted by them.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Which of layer, head, sequence and query a row speaks of."""
        return tuple(column.name for column in self.columns if column in STATISTIC_KEY[1:])


@dataclass(frozen=True)
class SummaryMetric:
    """One metric of ``summary``: an SQL expression over a result table, and the fixed bins of its histogram.

    Of a table without heads there are summaries by layer and for the job; without layers, for the job alone.

    Bins are ``low + k * width`` for k < bins; values outside are counted in the first or last bin, so that
    histograms of different jobs can be added and compared.
    """

    name: str
    table: str
    expression: str
    low: float
    width: float
    bins: int
    comment: str


TOKEN_TABLE = "token"  # noqa: S105  # a table of text tokens; beside the tables of its kind every job has this one: the text behind (sequence, query)

JOB = Column("job_id", "int4", "the job that measured the row")
LAYER = Column("layer", "int2", "layer, 0-based")
HEAD = Column("head", "int2", "query head, 0-based")
SEQUENCE = Column("sequence", "int4", "sequence of the job's data set, 0-based")
QUERY = Column("query", "int4", "position of the query in its sequence, 0-based; it sees keys 0 to query")
STATISTIC_KEY = (JOB, LAYER, HEAD, SEQUENCE, QUERY)
