"""The tokens a job measured, as Arrow record batches: what (sequence, query) of every row stands for."""

from collections.abc import Iterator

import pyarrow as pa
from psycopg import Connection

TOKEN_SCHEMA = pa.schema(
    [
        pa.field("job_id", pa.int32(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("token_id", pa.int32(), nullable=False),
        pa.field("text", pa.string()),  # null if the data set came as bare token ids
        pa.field("document", pa.int32()),
        pa.field("document_name", pa.string()),
    ]
)
_BATCH_ROWS = 50_000


def token_batches(conn: Connection, job_id: int) -> Iterator[pa.RecordBatch]:
    """Sequence, position, token id, text and document of every token, in order; nothing before the data were read."""
    query = "SELECT {} FROM analysis.token WHERE job_id = %s ORDER BY sequence, position"
    with conn.transaction(), conn.cursor("tokens") as cursor:
        cursor.execute(query.format(", ".join(TOKEN_SCHEMA.names)), (job_id,))  # type: ignore[arg-type]  # names above
        while rows := cursor.fetchmany(_BATCH_ROWS):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, TOKEN_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=TOKEN_SCHEMA)
