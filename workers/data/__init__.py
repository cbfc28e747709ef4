"""Data sets: read from a source, tokenized, packed into sequences, fingerprinted."""

from workers.data.reading import read_sequences
from workers.data.token_set import Document, TokenSet
from workers.data.vocabulary import vocabulary_texts

__all__ = ["Document", "TokenSet", "read_sequences", "vocabulary_texts"]
