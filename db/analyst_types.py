"""How PostgreSQL's types become Arrow's in analysts' answers.

Numbers, times and booleans keep their kind, ``numeric`` becomes float64 (averages of integers are numeric), arrays of
numbers or texts become lists; every other type is shown as the text that PostgreSQL prints.
"""

import pyarrow as pa
from psycopg import Connection, postgres, pq
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import TextLoader

_BY_NAME: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "numeric": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_LISTS = {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "name"}


def _by_oid() -> dict[int, pa.DataType]:
    arrow: dict[int, pa.DataType] = {}
    for info in postgres.types:
        element = _BY_NAME.get(info.name, pa.string())
        arrow[info.oid] = element
        if info.array_oid:
            arrow[info.array_oid] = pa.list_(element) if info.name in _LISTS else pa.string()
    return arrow


_BY_OID = _by_oid()


def register(conn: Connection) -> None:
    """Make the connection load values as the Arrow types need them."""
    for oid, arrow in _BY_OID.items():
        if arrow == pa.string():
            conn.adapters.register_loader(oid, TextLoader)
    conn.adapters.register_loader("numeric", FloatLoader)


def schema(result: pq.abc.PGresult) -> pa.Schema:
    """Names and Arrow types of a result's columns; names may repeat, as in SQL."""
    fields = []
    for index in range(result.nfields):
        name = result.fname(index)
        assert name is not None
        fields.append(pa.field(name.decode("utf-8", "replace"), _BY_OID.get(result.ftype(index), pa.string())))
    return pa.schema(fields)
