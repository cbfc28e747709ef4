"""Rows of one job as Arrow record batches, a bounded number of them in memory at a time.

PostgreSQL sends a message per row, and taking five million of them costs Python half a minute. So the server gathers
each column of some thousand rows into one array, whose binary form NumPy reads as a whole.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from psycopg import Connection, IsolationLevel, sql
from psycopg.pq import TransactionStatus

from db import partitions
from db.copy import WIRE
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.tables import Column, ColumnType, ResultTable

_ARROW: dict[ColumnType, pa.DataType] = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
}
_PAGES = 512  # of 8 kB: about 75,000 narrow rows a batch
_ARRAY_HEADER = 20  # dimensions, NULL flag, element type, length, lower bound


def schema(table: ResultTable, columns: Sequence[str] | None = None) -> pa.Schema:
    """Arrow schema of a table's columns, in table order, with their comments as metadata."""
    return pa.schema(
        [
            pa.field(column.name, _ARROW[column.type], nullable=False, metadata={"comment": column.comment})
            for column in _chosen(table, columns)
        ],
        metadata={"comment": table.comment},
    )


def table_batches(
    conn: Connection,
    table: ResultTable,
    job_id: int,
    *,
    columns: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The job's rows of a per-query table in the order of storage: by shard, layer, head, sequence and query.

    All batches come from one snapshot: ``conn`` must be in autocommit and outside a transaction, and is busy until the
    iterator is exhausted or closed. A job without rows yields nothing. Raises KeyholeError (invalid_request) for a
    column the table does not have.
    """
    if conn.info.transaction_status != TransactionStatus.IDLE:
        raise RuntimeError("the connection is in a transaction, whose snapshot may be older than the rows")
    chosen = _chosen(table, columns)
    arrow = schema(table, columns)
    before = conn.isolation_level
    conn.isolation_level = IsolationLevel.REPEATABLE_READ
    try:
        with conn.transaction():
            # Before the snapshot: merging cannot put another partition in this one's place between two batches.
            conn.execute(sql.SQL("LOCK TABLE keyhole.{} IN ACCESS SHARE MODE").format(sql.Identifier(table.name)))
            relation = partitions.found(conn, table.name, job_id)
            if relation is None:
                return
            size = conn.execute("SELECT pg_relation_size(%s::regclass) / 8192", (relation.as_string(conn),)).fetchone()
            assert size is not None
            query = _query(relation, chosen, job_id, layer, head)
            with conn.cursor(binary=True) as cursor:
                for page in range(0, size[0], _PAGES):
                    cursor.execute(query, (f"({page},0)", f"({page + _PAGES},0)"), prepare=True)
                    result = cursor.pgresult
                    assert result is not None
                    arrays = [_unpacked(result.get_value(0, index), column) for index, column in enumerate(chosen)]
                    if len(arrays[0]):
                        yield pa.RecordBatch.from_arrays(arrays, schema=arrow)
    finally:
        if not conn.closed:
            conn.isolation_level = before


def _query(
    relation: sql.Identifier, columns: Sequence[Column], job_id: int, layer: int | None, head: int | None
) -> sql.Composed:
    """One row of one array per column, over a range of pages."""
    conditions = {"job_id": job_id} | {
        name: value for name, value in (("layer", layer), ("head", head)) if value is not None
    }
    arrays = sql.SQL(", ").join(sql.SQL("array_agg({})").format(sql.Identifier(column.name)) for column in columns)
    where = sql.SQL("").join(
        sql.SQL(" AND {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in conditions.items()
    )
    return sql.SQL("SELECT {} FROM {} WHERE ctid >= %s::tid AND ctid < %s::tid{}").format(arrays, relation, where)


def _unpacked(wire: bytes | None, column: Column) -> pa.Array:
    """An Arrow array from PostgreSQL's binary array of a fixed-width type without NULLs."""
    value = np.dtype(WIRE[column.type])
    if wire is None:
        return pa.array([], _ARROW[column.type])
    elements = np.frombuffer(wire, np.dtype([("size", ">i4"), ("value", value)]), offset=_ARRAY_HEADER)
    return pa.array(elements["value"].astype(value.newbyteorder("=")), _ARROW[column.type])


def _chosen(table: ResultTable, columns: Sequence[str] | None) -> list[Column]:
    known = {column.name: column for column in table.columns}
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{table.name} has no column {', '.join(unknown)}.",
            f"Its columns are {', '.join(known)}.",
        )
    return [column for name, column in known.items() if columns is None or name in columns]
