"""Models that were loaded at least once, one row per identity."""

from typing import Any

from psycopg import Connection
from psycopg.types.json import Jsonb


def store(conn: Connection, identity: str, source: str, model_type: str, architecture: dict[str, Any]) -> int:
    """The id of the model with that identity, inserted if it is new; the first source and description stay."""
    row = conn.execute(
        """
        INSERT INTO keyhole.model (identity, source, model_type, architecture) VALUES (%s, %s, %s, %s)
        ON CONFLICT (identity) DO NOTHING RETURNING id
        """,
        (identity, source, model_type, Jsonb(architecture)),
    ).fetchone()
    row = row or conn.execute("SELECT id FROM keyhole.model WHERE identity = %s", (identity,)).fetchone()
    assert row is not None
    return row[0]
