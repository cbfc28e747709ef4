"""Token sequences of one length, and the documents their positions came from."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

TokenIds = Int32[np.ndarray, "sequence position"]


@dataclass(frozen=True)
class Document:
    """Positions ``start`` to ``stop`` (exclusive) of a sequence come from one document."""

    sequence: int
    start: int
    stop: int
    document: int  # counted from 0 as read; a document that runs on into the next sequence is named there too
    name: str | None


@dataclass(frozen=True)
class TokenSet:
    token_ids: TokenIds
    documents: tuple[Document, ...]  # by sequence and start; together they cover every position
    fingerprint: str  # SHA-256 of shape, token ids and boundaries
    identity: str  # as resolve_dataset gives it
    source: str
    tokenizer_sha256: str | None  # None without a tokenizer: the token ids have no text


def fingerprint(token_ids: TokenIds, documents: Sequence[Document]) -> str:
    """Hex SHA-256 of the shape, the token ids and the document boundaries; names are not part of it."""
    digest = hashlib.sha256()
    digest.update(np.array(token_ids.shape, "<i8").tobytes())
    digest.update(np.ascontiguousarray(token_ids, "<i4").data)
    boundaries = [(part.sequence, part.start, part.stop, part.document) for part in documents]
    digest.update(np.array(boundaries, "<i8").tobytes())
    return digest.hexdigest()
