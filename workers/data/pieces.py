"""Documents as pieces of text small enough to tokenize, cut where a tokenizer cuts too."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Characters. A tokenizer needs some 100 bytes of memory per character while it encodes.
PIECE = 250_000
# A byte-level tokenizer's pattern always parts at these places: before a line end between two words, or before a space
# between two words. One that puts a mark in front of every text adds one mark per piece.
_LINE_END = re.compile(r"(?<=\S)\n(?=\S)")
_SPACE = re.compile(r"(?<=\S) (?=\S)")


@dataclass(frozen=True)
class Piece:
    document: int  # counted from 0
    name: str | None
    text: str
    last: bool  # of its document


def document_pieces(document: int, name: str | None, texts: Iterable[str]) -> Iterator[Piece]:
    """One document, given as consecutive parts, as pieces of about PIECE characters."""
    buffer = ""
    for text in texts:
        buffer += text
        while len(buffer) > 2 * PIECE:
            cut = _cut(buffer)
            yield Piece(document, name, buffer[:cut], last=False)
            buffer = buffer[cut:]
    yield Piece(document, name, buffer, last=True)


def _cut(text: str) -> int:
    for pattern, offset in ((_LINE_END, 1), (_SPACE, 0)):
        found = pattern.search(text, PIECE, 2 * PIECE)
        if found:
            return found.start() + offset
    return PIECE
