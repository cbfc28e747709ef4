"""The tokens of a text data set in one file of the cache, made once, as far as anybody has needed it so far.

Documents are tokenized as for probes (workers/data/packing.py) and written end to end, never held in memory. A journal
beside the file says how far it is good, and with which piece of which document it goes on: a process that dies loses
what it wrote since the last entry, and whoever needs more continues there. Bytes that the journal vouches for are never
written again, so that others may have them mapped meanwhile.
"""

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from workers.data.packing import token_runs
from workers.data.pieces import Piece
from workers.models.tokenizer import separator_id

_BATCH_PIECES = 64
_BATCH_CHARACTERS = 2_000_000  # tokenized at once; a tokenizer needs some 100 bytes for each
_ENTRY_TOKENS = 1 << 22  # between two entries of the journal
log = logging.getLogger(__name__)


@dataclass
class _Journal:
    """How far the file is good, and where the data set goes on behind it."""

    tokens: int = 0
    crc32: int = 0  # of the bytes of those tokens
    documents: int = 0  # that are wholly in the file
    pieces: int = 0  # of the next document that are in the file
    begun: bool = False  # whether that document has a token yet
    whole: bool = False  # the data set ends here


def token_stream(
    path: Path,
    pieces: Callable[[int], Iterator[Piece]],
    tokenizer: PreTrainedTokenizerFast,
    *,
    tokens: int | None,
    unchanged: Callable[[], None],
) -> np.ndarray:
    """A read-only map of the data set's first ``tokens`` tokens, fewer if it has no more; of all if None.

    ``pieces(n)`` gives the pieces of the data set from its n-th document on. ``unchanged()`` raises if the data set is
    no longer what ``path`` stands for; nothing is vouched for before it was asked. Several processes may ask at once.
    """
    dtype = np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        journal = _sound_journal(path, dtype)
        if not journal.whole and (tokens is None or journal.tokens < tokens):
            _extend(path, dtype, journal, pieces, tokenizer, tokens, unchanged)
    size = journal.tokens if tokens is None else min(tokens, journal.tokens)
    if size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", shape=(size,))


def _extend(
    path: Path,
    dtype: np.dtype,
    journal: _Journal,
    pieces: Callable[[int], Iterator[Piece]],
    tokenizer: PreTrainedTokenizerFast,
    tokens: int | None,
    unchanged: Callable[[], None],
) -> None:
    """Tokenize on from where the journal stands until there are enough tokens or no more pieces."""
    more = islice(pieces(journal.documents), journal.pieces, None)
    runs = token_runs(_batches(more), tokenizer, separator_id(tokenizer), begun=journal.begun)
    recorded = journal.tokens
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.truncate(journal.tokens * dtype.itemsize)  # what a process wrote that died before its next entry
        file.seek(0, os.SEEK_END)
        for run in runs:
            data = run.token_ids.astype(dtype).tobytes()
            file.write(data)
            journal.tokens += run.token_ids.size
            journal.crc32 = zlib.crc32(data, journal.crc32)
            journal.begun = run.begun
            journal.documents += run.piece.last
            journal.pieces = 0 if run.piece.last else journal.pieces + 1
            enough = tokens is not None and journal.tokens >= tokens
            if enough or journal.tokens - recorded >= _ENTRY_TOKENS:
                _record(path, file.fileno(), file.flush, journal, unchanged)
                recorded = journal.tokens
                log.info("%s tokens of %s documents are in %s", journal.tokens, journal.documents, path.name)
            if enough:
                return
        journal.whole = True
        _record(path, file.fileno(), file.flush, journal, unchanged)


def _record(
    path: Path, descriptor: int, flush: Callable[[], None], journal: _Journal, unchanged: Callable[[], None]
) -> None:
    """Vouch for what is written by now."""
    unchanged()
    flush()
    os.fsync(descriptor)
    making = path.with_suffix(".making")
    making.write_text(json.dumps(asdict(journal) | {"modified_ns": os.fstat(descriptor).st_mtime_ns}))
    making.replace(path.with_suffix(".json"))


def _sound_journal(path: Path, dtype: np.dtype) -> _Journal:
    """The journal if the file holds what it says, else an empty one; bytes are read only where the time disagrees."""
    try:
        entry = json.loads(path.with_suffix(".json").read_text())
        modified_ns = entry.pop("modified_ns")
        journal = _Journal(**entry)
        size = journal.tokens * dtype.itemsize
        stat = path.stat()
        if stat.st_size == size and stat.st_mtime_ns == modified_ns:
            return journal
        if stat.st_size >= size and _crc32(path, size) == journal.crc32:
            return journal
        log.warning("The cached tokens %s are not what was written; they are made again.", path.name)
    except FileNotFoundError:
        return _Journal()
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("The cached tokens %s cannot be read (%s); they are made again.", path.name, error)
    path.unlink(missing_ok=True)  # a new file: others may have this one mapped
    return _Journal()


def _crc32(path: Path, size: int) -> int:
    value = 0
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            value = zlib.crc32(block, value)
            size -= len(block)
    return value


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_PIECES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock that the kernel releases when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
