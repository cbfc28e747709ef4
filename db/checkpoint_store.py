"""Checkpoints from files to rows and back: pieces first, in transactions of their own; the rows that name them last.

    files = upload(transact, {"config.json": path, …}, store)      # nothing is visible yet
    transact(lambda conn: commit(conn, run_id, new, files))        # now it is, whole

Pieces that nobody refers to are kept for an hour. Should more pass between the two calls, ``commit`` raises PiecesGone;
``stored`` does both and begins again then.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import LifoQueue
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import Connection
from psycopg.types.json import Jsonb

from db import object_store, piece_storage
from db.checkpoint_pieces import BATCH_BYTES, HASHING, CutFile, Piece
from db.stored_files import StoredFile, identity_of

_UPLOADS = 3  # of one checkpoint, before giving up

T = TypeVar("T")


class Transact(Protocol):
    """Runs a function in a transaction of its own and returns what it returns; Ledger.transact is one.

    It calls the function again after a deadlock, in which three writers of equal pieces can meet.
    """

    def __call__(self, function: Callable[[Connection], T], /) -> T: ...


class PiecesGone(Exception):
    """Pieces were collected between upload and commit: upload the files again."""


@dataclass(frozen=True)
class NewCheckpoint:
    step: int  # optimizer steps taken
    reasons: Sequence[str]
    config: dict[str, Any]  # config.json
    model_type: str
    validation_loss_nats: float | None
    resumable: bool


def upload(
    transact: Transact, files: Mapping[str, Path], store: str | None, beside: Sequence[Transact] = ()
) -> list[StoredFile]:
    """Store the bytes of files, by name; ``store`` is KEYHOLE_CHECKPOINT_STORE.

    ``beside`` are further connections to use at the same time. Some batches of pieces are in memory at a time.
    """
    if store:
        object_store.require_usable(store)
    free: LifoQueue[Transact] = LifoQueue()  # so that further connections are used, and made, only where they are due
    for each in (*beside, transact):
        free.put(each)
    stored, waiting, sent = [], [], deque()
    with ThreadPoolExecutor(HASHING) as hashing, ThreadPoolExecutor(1 + len(beside)) as sending:
        for name, path in files.items():
            file, pieces = CutFile(path, hashing), []
            for batch in file.batches():
                pieces += [piece.sha256 for piece in batch]
                waiting += batch
                if sum(len(piece.content) for piece in waiting) < BATCH_BYTES // 2:
                    continue  # small files go together
                sent.append(sending.submit(_put, free, waiting, store))
                waiting = []
                if len(sent) > 1 + len(beside):  # one more than are under way
                    sent.popleft().result()
            stored.append(StoredFile(name, file.size, file.sha256, tuple(pieces)))
        if waiting:
            sent.append(sending.submit(_put, free, waiting, store))
        for each in sent:
            each.result()
    return stored


def commit(conn: Connection, run_id: int, new: NewCheckpoint, files: Sequence[StoredFile]) -> int:
    """Make a checkpoint of uploaded files visible and return its number; call in the transaction that accounts for it.

    One of this run and step with the same model keeps its number, gains the reasons and gets the files it lacks; one
    with another model goes.
    Raises PiecesGone, after which the transaction cannot go on.
    """
    identity = identity_of(files)
    found = conn.execute(
        "SELECT id, identity FROM keyhole.checkpoint WHERE run_id = %s AND step = %s FOR UPDATE", (run_id, new.step)
    ).fetchone()
    if found is not None and found[1] != identity:
        conn.execute("DELETE FROM keyhole.checkpoint WHERE id = %s", (found[0],))
        found = None
    checkpoint_id = _insert(conn, run_id, new, identity) if found is None else _merge(conn, found[0], new)
    for file in files:
        _insert_file(conn, checkpoint_id, file)
    return checkpoint_id


def stored(
    transact: Transact,
    files: Mapping[str, Path],
    store: str | None,
    work: Callable[[Connection, list[StoredFile]], T],
    beside: Sequence[Transact] = (),
) -> T:
    """Upload the files, then run ``work``, which commits them, in one transaction; again if pieces were collected."""
    for _ in range(_UPLOADS - 1):
        uploaded = upload(transact, files, store, beside)
        try:
            return transact(lambda conn: work(conn, uploaded))  # noqa: B023  # called at once
        except PiecesGone:
            continue
    uploaded = upload(transact, files, store, beside)
    return transact(lambda conn: work(conn, uploaded))


def _put(free: "LifoQueue[Transact]", batch: Sequence[Piece], store: str | None) -> None:
    transact = free.get()
    try:
        while not transact(lambda conn: piece_storage.put(conn, batch, store)):
            pass
    finally:
        free.put(transact)


def _insert(conn: Connection, run_id: int, new: NewCheckpoint, identity: str) -> int:
    row = conn.execute(
        """
        INSERT INTO keyhole.checkpoint
            (run_id, step, reasons, identity, model_type, config, validation_loss_nats, resumable)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING id
        """,
        (
            run_id,
            new.step,
            sorted(set(new.reasons)),
            identity,
            new.model_type,
            Jsonb(new.config),
            new.validation_loss_nats,
            new.resumable,
        ),
    ).fetchone()
    assert row is not None
    return row[0]


def _merge(conn: Connection, checkpoint_id: int, new: NewCheckpoint) -> int:
    conn.execute(
        """
        UPDATE keyhole.checkpoint
        SET reasons = ARRAY(SELECT DISTINCT unnest(reasons || %s::text[]) ORDER BY 1),
            validation_loss_nats = coalesce(%s, validation_loss_nats), resumable = resumable OR %s
        WHERE id = %s
        """,
        (list(new.reasons), new.validation_loss_nats, new.resumable, checkpoint_id),
    )
    return checkpoint_id


def _insert_file(conn: Connection, checkpoint_id: int, file: StoredFile) -> None:
    """Name the file and its pieces, in place of another file of this name."""
    conn.execute(
        "DELETE FROM keyhole.checkpoint_file WHERE checkpoint_id = %s AND name = %s", (checkpoint_id, file.name)
    )
    row = conn.execute(
        "INSERT INTO keyhole.checkpoint_file (checkpoint_id, name, size, sha256) VALUES (%s, %s, %s, %s) RETURNING id",
        (checkpoint_id, file.name, file.size, file.sha256),
    ).fetchone()
    assert row is not None
    try:
        conn.execute(
            """
            INSERT INTO keyhole.checkpoint_piece (file_id, number, sha256)
            SELECT %s, ordinality - 1, sha256 FROM unnest(%s::bytea[]) WITH ORDINALITY AS given (sha256, ordinality)
            """,
            (row[0], list(file.pieces)),
        )
    except psycopg.errors.ForeignKeyViolation as error:
        raise PiecesGone(f"pieces of {file.name} were collected before they were referred to") from error
    # now that the rows are locked by the reference, a collector that had begun cannot finish unseen
    leaving = conn.execute(
        "SELECT FROM keyhole.piece WHERE sha256 = ANY(%s) AND seen_at IS NULL LIMIT 1", (list(file.pieces),)
    ).fetchone()
    if leaving is not None:
        raise PiecesGone(f"pieces of {file.name} are being collected")
