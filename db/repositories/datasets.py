"""Tokenized data sets: token ids by sequence, the documents they came from, and the text of each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from psycopg import Connection
from psycopg.rows import class_row

from db.copy import SIGNATURE, TRAILER

_CHUNK_TOKENS = 1_000_000
_INT4_OID = 23


class Document(Protocol):
    """Positions ``start`` to ``stop`` (exclusive) of a sequence come from one document."""

    @property
    def sequence(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def document(self) -> int: ...
    @property
    def name(self) -> str | None: ...


class TokenSet(Protocol):
    """What is stored of a data set; ``token_ids`` is [sequences, length]."""

    @property
    def token_ids(self) -> np.ndarray: ...
    @property
    def documents(self) -> Sequence[Document]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def tokenizer_sha256(self) -> str | None: ...


@dataclass(frozen=True)
class TokenText:
    position: int
    token_id: int
    text: str | None  # None if the data set came as bare token ids
    document: int | None
    document_name: str | None


def store(conn: Connection, data: TokenSet, vocabulary: Callable[[], Sequence[str]]) -> int:
    """The id of the data set of that fingerprint and tokenizer, stored with all its tokens if it is new.

    Call inside a transaction. Whoever stores the same data set at the same time waits for the first and finds its
    row. ``vocabulary`` gives the text of every token and is called only for a tokenizer not seen before.
    """
    tokenizer_id = None if data.tokenizer_sha256 is None else _store_tokenizer(conn, data.tokenizer_sha256, vocabulary)
    sequences, length = data.token_ids.shape
    row = conn.execute(
        """
        INSERT INTO keyhole.dataset (fingerprint, identity, source, tokenizer_id, sequences, length)
        VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (fingerprint, tokenizer_id) DO NOTHING RETURNING id
        """,
        (data.fingerprint, data.identity, data.source, tokenizer_id, sequences, length),
    ).fetchone()
    if row is None:
        row = conn.execute(
            "SELECT id FROM keyhole.dataset WHERE fingerprint = %s AND tokenizer_id IS NOT DISTINCT FROM %s",
            (data.fingerprint, tokenizer_id),
        ).fetchone()
        assert row is not None
        return row[0]
    dataset_id: int = row[0]
    _copy_sequences(conn, dataset_id, data.token_ids)
    with (
        conn.cursor() as cursor,
        cursor.copy(
            "COPY keyhole.sequence_document (dataset_id, sequence, start_position, stop_position, document, name) "
            "FROM STDIN"
        ) as stream,
    ):
        for held in data.documents:
            name = None if held.name is None else storable(held.name)
            stream.write_row((dataset_id, held.sequence, held.start, held.stop, held.document, name))
    return dataset_id


def tokens(conn: Connection, job_id: int, sequence: int, start: int = 0, stop: int | None = None) -> list[TokenText]:
    """Tokens of a job's sequence at positions ``start`` to ``stop`` (exclusive), with text and document."""
    with conn.cursor(row_factory=class_row(TokenText)) as cursor:
        return cursor.execute(
            """
            SELECT position, token_id, text, document, document_name FROM analysis.token
            WHERE job_id = %s AND sequence = %s AND position >= %s AND position < coalesce(%s, 2147483647)
            ORDER BY position
            """,
            (job_id, sequence, start, stop),
        ).fetchall()


def storable(text: str) -> str:
    """Text as Postgres takes it: NUL shown by its symbol, lone surrogates replaced."""
    return text.replace("\x00", "\u2400").encode("utf-8", "replace").decode("utf-8")


def _store_tokenizer(conn: Connection, sha256: str, vocabulary: Callable[[], Sequence[str]]) -> int:
    row = conn.execute("SELECT id FROM keyhole.tokenizer WHERE sha256 = %s", (sha256,)).fetchone()
    if row is not None:
        return row[0]
    texts = vocabulary()
    row = conn.execute(
        "INSERT INTO keyhole.tokenizer (sha256, vocabulary_size) VALUES (%s, %s) "
        "ON CONFLICT (sha256) DO NOTHING RETURNING id",
        (sha256, len(texts)),
    ).fetchone()
    if row is None:
        return _store_tokenizer(conn, sha256, vocabulary)
    with (
        conn.cursor() as cursor,
        cursor.copy("COPY keyhole.vocabulary (tokenizer_id, token_id, text) FROM STDIN") as stream,
    ):
        for token_id, text in enumerate(texts):
            stream.write_row((row[0], token_id, storable(text)))
    return row[0]


def _copy_sequences(conn: Connection, dataset_id: int, token_ids: np.ndarray) -> None:
    """Binary COPY of [sequences, length] token ids: a million sequences would take minutes as text."""
    sequences, length = token_ids.shape
    fields = [(f"f{index}", ">i4") for index in range(10)]
    # field count; dataset_id; sequence; then an array: its bytes, 1 dimension, no NULLs, element type, length, base 1
    row_type = np.dtype([("fields", ">i2"), *fields, ("tokens", [("size", ">i4"), ("id", ">i4")], (length,))])
    chunk = max(1, _CHUNK_TOKENS // length)
    rows = np.zeros(min(chunk, sequences), row_type)
    rows["fields"] = 3
    header = {0: 4, 1: dataset_id, 2: 4, 4: 20 + 8 * length, 5: 1, 6: 0, 7: _INT4_OID, 8: length, 9: 1}
    for index, value in header.items():
        rows[f"f{index}"] = value
    rows["tokens"]["size"] = 4
    with (
        conn.cursor() as cursor,
        cursor.copy("COPY keyhole.sequence (dataset_id, sequence, token_ids) FROM STDIN (FORMAT binary)") as stream,
    ):
        stream.write(SIGNATURE)
        for start in range(0, sequences, chunk):
            part = rows[: min(chunk, sequences - start)]
            part["f3"] = np.arange(start, start + len(part))
            part["tokens"]["id"] = token_ids[start : start + len(part)]
            stream.write(part.view(np.uint8).data)
        stream.write(TRAILER)
