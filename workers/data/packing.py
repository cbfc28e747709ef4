"""Documents tokenized and packed end to end into sequences of one length.

Behind each document stands the tokenizer's separator (see workers/models/tokenizer.py), counted as part of it. No
other special token is added. Empty documents are passed over, the remainder that fills no sequence is dropped, and no
more is read than needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from workers.data.pieces import Piece
from workers.data.token_set import Document, TokenIds
from workers.models.tokenizer import tokenizing

_BATCH_PIECES = 64
_CHARACTERS_PER_TOKEN = 4  # assumed, of English; only how much is tokenized at once depends on it
_BATCH_CHARACTERS = (50_000, 2_000_000)  # least and most


class Packer:
    """Gathers runs of tokens until the sequences asked for are full."""

    def __init__(self, sequences: int, length: int) -> None:
        self._sequences, self._length = sequences, length
        self._runs: list[np.ndarray] = []
        self._parts: list[tuple[int, int, str | None]] = []  # where it stops in the stream, document, name
        self.tokens = 0

    @property
    def missing(self) -> int:
        """Tokens that are still to come."""
        return max(0, self._sequences * self._length - self.tokens)

    def add(self, token_ids: np.ndarray, document: int, name: str | None) -> None:
        if token_ids.size == 0 or self.missing == 0:
            return
        token_ids = token_ids[: self.missing]
        self._runs.append(np.asarray(token_ids, np.int32))
        self.tokens += token_ids.size
        if self._parts and self._parts[-1][1] == document:
            self._parts.pop()
        self._parts.append((self.tokens, document, name))

    def packed(self, source: str) -> tuple[TokenIds, tuple[Document, ...]]:
        """The sequences and their documents; raises KeyholeError (dataset_too_short)."""
        if self.missing:
            raise too_short(source, self.tokens, self._sequences, self._length)
        token_ids = np.concatenate(self._runs).reshape(self._sequences, self._length)
        return token_ids, tuple(self._documents())

    def _documents(self) -> Iterator[Document]:
        start = 0
        for stop, document, name in self._parts:
            while start < stop:
                sequence, position = divmod(start, self._length)
                end = min(stop, (sequence + 1) * self._length)
                yield Document(sequence, position, end - sequence * self._length, document, name)
                start = end


def pack_text(
    pieces: Iterable[Piece], tokenizer: PreTrainedTokenizerFast, separator: int | None, packer: Packer
) -> None:
    """Tokenize pieces in batches into ``packer`` until it is full or they end."""
    for run in token_runs(_batches(pieces, packer), tokenizer, separator):
        packer.add(run.token_ids, run.piece.document, run.piece.name)


@dataclass(frozen=True)
class TokenRun:
    """The token ids of a piece; behind the last piece of a document that has any stands the separator."""

    piece: Piece
    token_ids: np.ndarray  # [position], int32; empty for blank documents
    begun: bool  # whether its document, if it goes on, has a token yet


def token_runs(
    batches: Iterable[list[Piece]], tokenizer: PreTrainedTokenizerFast, separator: int | None, *, begun: bool = False
) -> Iterator[TokenRun]:
    """Tokenize pieces batch by batch; ``begun`` says it of the document in whose middle the first piece may stand."""
    behind = np.array([] if separator is None else [separator], np.int32)
    for batch in batches:
        texts = [piece.text for piece in batch]
        with tokenizing("The model's tokenizer cannot encode this data set"):
            encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        for piece, encoding in zip(batch, encodings, strict=True):
            blank = not piece.text or piece.text.isspace()
            token_ids = np.array([], np.int32)
            if encoding.ids and not (blank and piece.last and not begun):
                token_ids = np.array(encoding.ids, np.int32)
                begun = True
            if piece.last:
                if begun:
                    token_ids = np.concatenate([token_ids, behind])
                begun = False
            yield TokenRun(piece, token_ids, begun)


def _batches(pieces: Iterable[Piece], packer: Packer) -> Iterator[list[Piece]]:
    """Pieces in batches about as large as what is missing, so that little is tokenized in vain."""
    batch: list[Piece] = []
    characters = 0
    least, most = _BATCH_CHARACTERS
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        wanted = min(most, max(least, packer.missing * _CHARACTERS_PER_TOKEN))
        if characters >= wanted or len(batch) >= _BATCH_PIECES:
            yield batch
            if not packer.missing:
                return
            batch, characters = [], 0
    if batch:
        yield batch


def too_short(source: str, tokens: int, sequences: int, length: int) -> KeyholeError:
    possible = tokens // length
    if possible:
        hint = f"Set sequences to at most {possible}, or use more data."
    elif tokens > 1:
        hint = f"Set length to at most {tokens}, or use more data."
    else:
        hint = "Use more data."
    return KeyholeError(
        ErrorCode.DATASET_TOO_SHORT,
        f"{source} has {tokens:,} tokens: enough for {possible:,} sequences of {length:,}, not for {sequences:,}.",
        hint,
    )
