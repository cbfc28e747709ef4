"""Checkpoints from files to rows and back: pieces first, in transactions of their own; the rows that name them last.

    files = upload(transact, {"config.json": path, …}, store)      # nothing is visible yet
    transact(lambda conn: commit(conn, run_id, new, files))        # now it is, whole

Pieces that nobody refers to are kept for an hour. Should more pass between the two calls, ``commit`` raises PiecesGone;
``stored`` does both and begins again then.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import Connection
from psycopg.types.json import Jsonb

from db import object_store, piece_storage
from db.checkpoint_pieces import Piece, pieces
from services.contracts.errors import ErrorCode, KeyholeError

RESUME_FILE = "resume.safetensors"
READ_BYTES = 8 << 20  # of pieces asked for at once
_UPLOADS = 3  # of one checkpoint, before giving up

T = TypeVar("T")


class Transact(Protocol):
    """Runs a function in a transaction of its own and returns what it returns; Ledger.transact is one."""

    def __call__(self, function: Callable[[Connection], T], /) -> T: ...


class PiecesGone(Exception):
    """Pieces were collected between upload and commit: upload the files again."""


@dataclass(frozen=True)
class StoredFile:
    """A file whose pieces are in the database."""

    name: str
    size: int
    sha256: bytes
    pieces: tuple[bytes, ...]  # SHA-256 of each, in order


@dataclass(frozen=True)
class NewCheckpoint:
    step: int  # optimizer steps taken
    reasons: Sequence[str]
    config: dict[str, Any]  # config.json
    model_type: str
    validation_loss_nats: float | None
    resumable: bool


def upload(transact: Transact, files: Mapping[str, Path], store: str | None) -> list[StoredFile]:
    """Store the bytes of files, by name; ``store`` is KEYHOLE_CHECKPOINT_STORE. No more than a batch is in memory."""
    if store:
        object_store.require_usable(store)
    batch: list[Piece] = []
    waiting = 0

    def flush() -> None:
        nonlocal waiting
        while batch and not _put(transact, batch, store):
            pass
        batch.clear()
        waiting = 0

    stored = []
    for name, path in files.items():
        whole, of_file, size = hashlib.sha256(), [], 0
        for piece in pieces(path):
            whole.update(piece.content)
            size += len(piece.content)
            of_file.append(piece.sha256)
            batch.append(piece)
            waiting += len(piece.content)
            if waiting >= piece_storage.BATCH_BYTES:
                flush()
        stored.append(StoredFile(name, size, whole.digest(), tuple(of_file)))
    flush()
    return stored


def commit(conn: Connection, run_id: int, new: NewCheckpoint, files: Sequence[StoredFile]) -> int:
    """Make a checkpoint of uploaded files visible and return its number; call in the transaction that accounts for it.

    One of this run and step with the same model keeps its number, gains the reasons and gets the files it lacks.
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
) -> T:
    """Upload the files, then run ``work``, which commits them, in one transaction; again if pieces were collected."""
    for _ in range(_UPLOADS - 1):
        uploaded = upload(transact, files, store)
        try:
            return transact(lambda conn: work(conn, uploaded))  # noqa: B023  # called at once
        except PiecesGone:
            continue
    uploaded = upload(transact, files, store)
    return transact(lambda conn: work(conn, uploaded))


def download(conn: Connection, checkpoint_id: int, folder: Path, names: Sequence[str] | None = None) -> None:
    """Write the checkpoint's files, or those of these names, into ``folder``; each piece and file is checked.

    A file appears under its name when it is whole. Raises KeyholeError: not_found, checkpoint_damaged, invalid_source
    (an imported one, whose files lie elsewhere).
    """
    for file in files_of(conn, checkpoint_id):
        if names is not None and file.name not in names:
            continue
        partial = folder / f".{file.name}.partial"
        with partial.open("wb") as target:
            for content in contents(conn, checkpoint_id, file):
                target.write(content)
        partial.rename(folder / file.name)


def files_of(conn: Connection, checkpoint_id: int) -> list[StoredFile]:
    """The checkpoint's files in the order of their names; raises KeyholeError (not_found, invalid_source)."""
    row = conn.execute("SELECT source FROM keyhole.checkpoint WHERE id = %s", (checkpoint_id,)).fetchone()
    if row is None:
        raise no_checkpoint(checkpoint_id)
    if row[0] is not None:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"The files of checkpoint {checkpoint_id} are not stored here: it was imported from {row[0]}.",
            f"Use {row[0]} itself.",
        )
    rows = conn.execute(
        """
        SELECT file.name, file.size, file.sha256, array_remove(array_agg(piece.sha256 ORDER BY number), NULL)
        FROM keyhole.checkpoint_file AS file LEFT JOIN keyhole.checkpoint_piece AS piece ON piece.file_id = file.id
        WHERE file.checkpoint_id = %s GROUP BY file.id ORDER BY file.name
        """,
        (checkpoint_id,),
    ).fetchall()
    return [StoredFile(name, size, sha256, tuple(shas)) for name, size, sha256, shas in rows]


def contents(conn: Connection, checkpoint_id: int, file: StoredFile) -> Iterator[bytes]:
    """The file piece by piece; raises KeyholeError (checkpoint_damaged) that names checkpoint, file and piece."""
    whole, size = hashlib.sha256(), 0
    for first, shas in _batches(file):
        for number, content in enumerate(piece_storage.get(conn, shas), first):
            if content is None:
                raise _damaged(conn, checkpoint_id, file, f"piece {number} ({shas[number - first].hex()[:12]}…)")
            whole.update(content)
            size += len(content)
            yield content
    if size != file.size or whole.digest() != file.sha256:
        raise _damaged(conn, checkpoint_id, file, f"the whole ({size:,} bytes of {file.size:,})")


def identity_of(files: Sequence[StoredFile]) -> str:
    """Pins what a model computes: the same as that of a folder with these files, its state for resuming left out."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        if file.name != RESUME_FILE:
            digest.update(f"{len(file.name)}:{file.name}:{file.sha256.hex()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def no_checkpoint(checkpoint_id: int) -> KeyholeError:
    return KeyholeError(
        ErrorCode.NOT_FOUND, f"There is no checkpoint {checkpoint_id}.", "List them with: keyhole checkpoints"
    )


def _put(transact: Transact, batch: Sequence[Piece], store: str | None) -> bool:
    try:
        return transact(lambda conn: piece_storage.put(conn, batch, store))
    except psycopg.errors.DeadlockDetected:  # three writers of equal pieces can meet so
        return False


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


def _batches(file: StoredFile) -> Iterator[tuple[int, list[bytes]]]:
    """(number of the first, SHA-256s) of pieces that are read together."""
    number = max(1, READ_BYTES * len(file.pieces) // max(file.size, 1))
    for first in range(0, len(file.pieces), number):
        yield first, list(file.pieces[first : first + number])


def _damaged(conn: Connection, checkpoint_id: int, file: StoredFile, part: str) -> KeyholeError:
    """What to say of a part that is not as it was stored; a checkpoint deleted meanwhile is no damage."""
    if conn.execute("SELECT FROM keyhole.checkpoint WHERE id = %s", (checkpoint_id,)).fetchone() is None:
        return no_checkpoint(checkpoint_id)
    return KeyholeError(
        ErrorCode.CHECKPOINT_DAMAGED,
        f"Checkpoint {checkpoint_id} is damaged: of {file.name}, {part} is missing or not as it was stored.",
        "Restore the database or the checkpoint store from a backup, or use another checkpoint of the run: "
        "keyhole checkpoints",
    )
