"""Garbage: pieces that no checkpoint refers to are removed, an hour after a writer last asked for them.

A writer refers to its pieces some time after it has asked for them, hence the hour. Should it take longer, the foreign
key decides: either the reference comes first, and the piece stays, or the writer finds it gone and stores it again.
Both lock the piece's row. What is locked is left to the next round.
"""

from dataclasses import dataclass

from psycopg import Connection

from db import object_store

KEPT_S = 3600.0
_BATCH = 1000  # pieces in one transaction

_UNWANTED = """
piece.seen_at < clock_timestamp() - make_interval(secs => %(kept_s)s)
  AND NOT EXISTS (SELECT FROM keyhole.checkpoint_piece WHERE checkpoint_piece.sha256 = piece.sha256)
"""


@dataclass
class Collected:
    pieces: int = 0
    bytes: int = 0


def collect(conn: Connection, kept_s: float = KEPT_S) -> Collected:
    """Remove what is unwanted now; for a connection in autocommit.

    What lies in the database goes first: a store outside that does not answer, KeyholeError (unavailable), does not
    keep it from being freed.
    """
    total = Collected()
    for step in (_collect_inside, _collect_outside):
        while step(conn, kept_s, total):
            pass
    return total


def _collect_inside(conn: Connection, kept_s: float, total: Collected) -> bool:
    """Delete a batch; whether there may be more."""
    with conn.transaction():
        locked = conn.execute(
            f"SELECT sha256 FROM keyhole.piece WHERE store IS NULL AND {_UNWANTED} "  # noqa: S608  # the condition above
            "LIMIT %(batch)s FOR UPDATE SKIP LOCKED",
            {"kept_s": kept_s, "batch": _BATCH},
        ).fetchall()
        # asked once more under the locks, by a statement that sees what was committed before they were had
        sizes = conn.execute(
            """
            DELETE FROM keyhole.piece WHERE sha256 = ANY(%s)
              AND NOT EXISTS (SELECT FROM keyhole.checkpoint_piece WHERE checkpoint_piece.sha256 = piece.sha256)
            RETURNING size
            """,
            ([row[0] for row in locked],),
        ).fetchall()
    total.pieces += len(sizes)
    total.bytes += sum(size for (size,) in sizes)
    return len(locked) == _BATCH


def _collect_outside(conn: Connection, kept_s: float, total: Collected) -> bool:
    """Give up a batch, so that writers know that it is going; then remove the objects and after them the rows."""
    conn.execute(
        f"UPDATE keyhole.piece SET seen_at = NULL WHERE sha256 IN "  # noqa: S608  # the condition above
        f"(SELECT sha256 FROM keyhole.piece WHERE store IS NOT NULL AND {_UNWANTED} "
        "LIMIT %(batch)s FOR UPDATE SKIP LOCKED)",
        {"kept_s": kept_s, "batch": _BATCH},
    )
    with conn.transaction():
        locked = conn.execute(
            "SELECT sha256 FROM keyhole.piece WHERE seen_at IS NULL LIMIT %s FOR UPDATE SKIP LOCKED", (_BATCH,)
        ).fetchall()
        shas = [row[0] for row in locked]
        conn.execute(
            """
            UPDATE keyhole.piece SET seen_at = clock_timestamp() WHERE sha256 = ANY(%s)
              AND EXISTS (SELECT FROM keyhole.checkpoint_piece WHERE checkpoint_piece.sha256 = piece.sha256)
            """,
            (shas,),
        )
        going = conn.execute(
            "SELECT sha256, store, size FROM keyhole.piece WHERE sha256 = ANY(%s) AND seen_at IS NULL", (shas,)
        ).fetchall()
        for store in {store for _, store, _ in going}:
            object_store.remove(store, [sha256 for sha256, its, _ in going if its == store])
        conn.execute("DELETE FROM keyhole.piece WHERE sha256 = ANY(%s)", ([sha256 for sha256, _, _ in going],))
    total.pieces += len(going)
    total.bytes += sum(size for _, _, size in going)
    return len(locked) == _BATCH
