"""Where the bytes of pieces lie: in the table ``piece``, or as objects <aa>/<sha256> of a store outside.

A piece is there when its ``seen_at`` is set. One that is being written to a store outside, or removed from it, has
none: its row comes before the object and goes after it, so that no object is without a row, and both writer and
collector hold the row's lock while they touch the object.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress

import psycopg
from psycopg import Connection

from db import object_store
from db.checkpoint_pieces import Piece
from db.copy import SIGNATURE, TRAILER
from services.contracts.errors import KeyholeError

_FIELDS = struct.Struct(">hi32siii")  # a row up to its content: number of fields; length and value of each


def put(conn: Connection, pieces: Sequence[Piece], store: str | None) -> bool:
    """Have the pieces in the database, or with their bytes in ``store``; False where it must be called again.

    Call in a transaction of its own. Only the bytes that are not there already are sent; those of
    another size than they should have are not there.
    """
    # What no row of a checkpoint refers to may be lost in a crash of the server, and the commit that refers to it is
    # written behind it: there is no need to wait for the disk here.
    conn.execute("SET LOCAL synchronous_commit = off")
    by_sha = {piece.sha256: piece for piece in sorted(pieces, key=lambda piece: piece.sha256)}  # one order of locks
    there = _seen(conn, list(by_sha.values()))
    missing = [piece for sha256, piece in by_sha.items() if sha256 not in there]
    if not missing:
        return True
    announced = _announced(conn, missing, store)
    if not store:
        _insert(conn, missing)
        return True
    return _put_outside(conn, missing, store, announced)


def get(conn: Connection, sha256s: Sequence[bytes]) -> list[bytes | None]:
    """The bytes of the pieces in this order, as they are found; None for those that are lost."""
    found = {
        sha256: (content, store)
        for sha256, content, store in conn.execute(
            "SELECT sha256, content, store FROM keyhole.piece WHERE sha256 = ANY(%s)",
            (list(set(sha256s)),),
            binary=True,
        )
    }
    contents = []
    for sha256 in sha256s:
        content, store = found.get(sha256, (None, None))
        contents.append(object_store.read(store, sha256) if content is None and store is not None else content)
    return contents


# Condition of a row of ``piece`` and one of ``given``. The length of what is stored out of line costs no reading of it.
_WHOLE = "seen_at IS NOT NULL AND piece.size = given.size AND coalesce(octet_length(content), given.size) = given.size"


def _seen(conn: Connection, pieces: Sequence[Piece]) -> set[bytes]:
    """Those that are there, as long as they should be; they will not be collected for an hour."""
    rows = conn.execute(
        f"""
        WITH there AS (SELECT sha256 FROM keyhole.piece
                           JOIN unnest(%s::bytea[], %s::integer[]) AS given (sha256, size) USING (sha256)
                       WHERE {_WHOLE} ORDER BY sha256 FOR NO KEY UPDATE OF piece)
        UPDATE keyhole.piece SET seen_at = clock_timestamp() FROM there WHERE piece.sha256 = there.sha256
        RETURNING piece.sha256
        """,  # noqa: S608  # a condition of this file
        _sizes(pieces),
        binary=True,
    )
    return {row[0] for row in rows}


def _sizes(pieces: Sequence[Piece]) -> tuple[list[bytes], list[int]]:
    return [piece.sha256 for piece in pieces], [len(piece.content) for piece in pieces]


def _announced(conn: Connection, missing: Sequence[Piece], store: str | None) -> set[bytes]:
    """Those that have a row, now locked, but not their bytes: a writer died, they are being collected, or damaged."""
    rows = conn.execute(
        f"""
        SELECT sha256, store
        FROM keyhole.piece JOIN unnest(%s::bytea[], %s::integer[]) AS given (sha256, size) USING (sha256)
        WHERE NOT ({_WHOLE}) ORDER BY sha256 FOR UPDATE OF piece
        """,  # noqa: S608  # the same
        _sizes(missing),
        binary=True,
    ).fetchall()
    for sha256, former in rows:
        if former is not None and former != store:
            with suppress(KeyholeError):  # a store that is gone leaves what nobody can remove
                object_store.remove(former, [sha256])
    return {row[0] for row in rows}


def _insert(conn: Connection, missing: Sequence[Piece]) -> None:
    """By COPY: a pipeline of inserts costs the client thirty times as much, libpq moves what it has not sent yet."""
    try:
        with conn.transaction():
            _copy(conn, missing)
    except psycopg.errors.UniqueViolation:  # another writer was faster with one of them, or it is announced
        for piece in missing:
            conn.execute(
                """
                INSERT INTO keyhole.piece (sha256, size, content) VALUES (%s, %s, %b)
                ON CONFLICT (sha256)
                DO UPDATE SET seen_at = clock_timestamp(), size = excluded.size, content = excluded.content,
                    store = NULL
                """,
                (piece.sha256, len(piece.content), piece.content),
            )


def _copy(conn: Connection, missing: Sequence[Piece]) -> None:
    statement = "COPY keyhole.piece (sha256, size, content) FROM STDIN (FORMAT binary)"
    with conn.cursor() as cursor, cursor.copy(statement) as stream:
        stream.write(SIGNATURE)
        for piece in missing:
            size = len(piece.content)
            stream.write(_FIELDS.pack(3, 32, piece.sha256, 4, size, size))
            stream.write(piece.content)
        stream.write(TRAILER)


def _put_outside(conn: Connection, missing: Sequence[Piece], store: str, announced: set[bytes]) -> bool:
    """Write the objects that have a row, under its lock, and announce the others."""
    writable = [piece for piece in missing if piece.sha256 in announced]
    object_store.write(store, {piece.sha256: piece.content for piece in writable})
    conn.execute(
        "UPDATE keyhole.piece SET seen_at = clock_timestamp(), size = given.size, store = %s, content = NULL "
        "FROM unnest(%s::bytea[], %s::integer[]) AS given (sha256, size) WHERE piece.sha256 = given.sha256",
        (store, *_sizes(writable)),
    )
    new = [piece for piece in missing if piece.sha256 not in announced]
    with conn.pipeline():
        for piece in new:
            conn.execute(
                "INSERT INTO keyhole.piece (sha256, size, store, seen_at) VALUES (%s, %s, %s, NULL) "
                "ON CONFLICT DO NOTHING",
                (piece.sha256, len(piece.content), store),
            )
    return not new
