"""Tokenized sequences kept on disk, so that shards, workers and repeated jobs do not tokenize again."""

import hashlib
import json
import logging
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from services.contracts.settings import Settings
from workers.data.token_set import Document, TokenIds, fingerprint

PACKING = 1  # raised when the same source and tokenizer are packed into other sequences
log = logging.getLogger(__name__)


def cache_path(identity: str, tokenizer_sha256: str, sequences: int, length: int, settings: Settings) -> Path:
    key = json.dumps([PACKING, identity, tokenizer_sha256, sequences, length])
    return settings.cache / "tokens" / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"


def load(path: Path, sequences: int, length: int) -> tuple[TokenIds, tuple[Document, ...]] | None:
    """What ``save`` kept, or None if it is not there or not whole."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as entry:
            token_ids, parts = entry["token_ids"], entry["documents"]
            names = json.loads(entry["names"].tobytes())
            expected = entry["fingerprint"].tobytes().decode()
        documents = tuple(
            Document(int(sequence), int(start), int(stop), int(document), name)
            for (sequence, start, stop, document), name in zip(parts, names, strict=True)
        )
        shape = (sequences, length)
        if token_ids.dtype == np.int32 and token_ids.shape == shape and fingerprint(token_ids, documents) == expected:
            return token_ids, documents
        log.warning("The cached tokens %s are not what was stored; they are made again.", path.name)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        log.warning("The cached tokens %s cannot be read (%s); they are made again.", path.name, error)
    return None


def save(path: Path, token_ids: TokenIds, documents: tuple[Document, ...]) -> None:
    """Write an entry whole or not at all; a full disk costs the cache, not the job."""
    parts = np.array([(part.sequence, part.start, part.stop, part.document) for part in documents], np.int64)
    names = json.dumps([part.name for part in documents]).encode()
    making: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, making = tempfile.mkstemp(prefix=".", suffix=".npz", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            np.savez(
                file,
                token_ids=token_ids,
                documents=parts,
                names=np.frombuffer(names, np.uint8),
                fingerprint=np.frombuffer(fingerprint(token_ids, documents).encode(), np.uint8),
            )
        Path(making).replace(path)
    except OSError as error:
        log.warning("The tokens could not be cached in %s (%s).", path.parent, error)
        if making is not None:
            Path(making).unlink(missing_ok=True)
