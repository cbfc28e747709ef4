"""Files of checkpoints as they are stored: found, read and checked."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from psycopg import Connection

from db import piece_storage
from db.checkpoint_pieces import HASHING, batched, sha256_of
from services.contracts.errors import ErrorCode, KeyholeError

RESUME_FILE = "resume.safetensors"


@dataclass(frozen=True)
class StoredFile:
    """A file whose pieces are in the database."""

    name: str
    size: int
    sha256: bytes
    pieces: tuple[bytes, ...]  # SHA-256 of each, in order


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
    """The file piece by piece; raises KeyholeError (checkpoint_damaged) that names checkpoint, file and piece.

    While pieces are checked and used the next ones are fetched: nobody else may use the connection meanwhile.
    """
    whole, size, number = hashlib.sha256(), 0, 0
    batches = list(_batches(conn, file))
    with ThreadPoolExecutor(1) as fetching, ThreadPoolExecutor(HASHING) as hashing:
        fetched = [fetching.submit(piece_storage.get, conn, shas) for shas in batches[:1]]
        for index, shas in enumerate(batches):
            found = fetched.pop().result()
            fetched += [fetching.submit(piece_storage.get, conn, shas) for shas in batches[index + 1 : index + 2]]
            together = hashing.submit(_update, whole, found)
            for sha256, content, actual in zip(shas, found, hashing.map(_sha256_or_none, found), strict=True):
                if content is None or actual != sha256:
                    raise _damaged(conn, checkpoint_id, file, f"piece {number} ({sha256.hex()[:12]}…)")
                size += len(content)
                number += 1
                yield content
            together.result()
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


def _batches(conn: Connection, file: StoredFile) -> Iterator[list[bytes]]:
    """SHA-256s of pieces that are read together, in their order."""
    rows = conn.execute("SELECT sha256, size FROM keyhole.piece WHERE sha256 = ANY(%s)", (list(file.pieces),))
    sizes = dict(rows.fetchall())
    position = 0
    for batch in batched([sizes.get(sha256, 0) for sha256 in file.pieces]):
        yield list(file.pieces[position : position + len(batch)])
        position += len(batch)


def _sha256_or_none(content: bytes | None) -> bytes | None:
    return None if content is None else sha256_of(content)


def _update(whole: "hashlib._Hash", contents: Sequence[bytes | None]) -> None:
    for content in contents:
        whole.update(content or b"")


def _damaged(conn: Connection, checkpoint_id: int, file: StoredFile, part: str) -> KeyholeError:
    """What to say of a part that is not as it was stored; a checkpoint deleted meanwhile is no damage."""
    if conn.execute("SELECT FROM keyhole.checkpoint WHERE id = %s", (checkpoint_id,)).fetchone() is None:
        return no_checkpoint(checkpoint_id)
    otherwise = (
        "train from the start: submit the job again with --force. Once the old one has ended, its checkpoint can go: "
        f"keyhole checkpoint-delete {checkpoint_id}"
        if file.name == RESUME_FILE
        else "use another checkpoint of the run: keyhole checkpoints"
    )
    return KeyholeError(
        ErrorCode.CHECKPOINT_DAMAGED,
        f"Checkpoint {checkpoint_id} is damaged: of {file.name}, {part} is missing or not as it was stored.",
        f"Restore the database or the checkpoint store from a backup, or {otherwise}",
    )
