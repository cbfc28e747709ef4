"""Data sets, models and counters: stored once however many come at once, and every token found with its text."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from db import token_export
from db.repositories import counters, datasets, jobs, models
from tests.conftest import MigratedDatabase
from tests.integration.db.conftest import NewJob


@dataclass(frozen=True)
class Document:
    sequence: int
    start: int
    stop: int
    document: int
    name: str | None


@dataclass(frozen=True)
class TokenSet:
    token_ids: np.ndarray
    documents: list[Document] = field(default_factory=list)
    fingerprint: str = "f" * 64
    identity: str = "identity"
    source: str = "builtin:python-docs"
    tokenizer_sha256: str | None = "a" * 64


TOKENS = np.random.default_rng(0).integers(0, 50, (5, 7), dtype=np.int32)
WORDS = [f"<{index}>" for index in range(47)] + ["\x00", "\ud800", "é∀"]
DOCUMENTS = [
    Document(sequence, start, stop, 2 * sequence + start // 3, None if start else f"page {sequence}\x00")
    for sequence in range(5)
    for start, stop in ((0, 3), (3, 7))
]


def _job_with(conn: psycopg.Connection, new_job: NewJob, dataset_id: int) -> int:
    job_id = new_job()
    jobs.describe(conn, job_id, dataset_id=dataset_id)
    return job_id


def test_every_token_comes_back_with_its_text_and_document(conn: psycopg.Connection, new_job: NewJob) -> None:
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(TOKENS, DOCUMENTS), lambda: WORDS)
    job_id = _job_with(conn, new_job, dataset_id)
    shown = [*WORDS[:47], "\u2400", "?", "é∀"]
    for sequence in range(5):
        found = datasets.tokens(conn, job_id, sequence)
        assert [one.token_id for one in found] == TOKENS[sequence].tolist()
        assert [one.text for one in found] == [shown[token] for token in TOKENS[sequence]]
        assert [one.document for one in found] == [2 * sequence] * 3 + [2 * sequence + 1] * 4
        assert [one.document_name for one in found] == [f"page {sequence}\u2400"] * 3 + [None] * 4
    window = datasets.tokens(conn, job_id, 2, 2, 5)
    assert [one.position for one in window] == [2, 3, 4]
    (text,) = conn.execute(
        "SELECT text FROM analysis.sequence_text WHERE job_id = %s AND sequence = 3", (job_id,)
    ).fetchone() or ("",)
    assert text == "".join(shown[token] for token in TOKENS[3])


def test_tokens_are_exported_whole_and_in_order_whatever_the_batch(
    conn: psycopg.Connection, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_export, "_BATCH_ROWS", 4)
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(TOKENS, DOCUMENTS), lambda: WORDS)
    table = pa.Table.from_batches(token_export.token_batches(conn, _job_with(conn, new_job, dataset_id)))
    assert table.schema == token_export.TOKEN_SCHEMA
    assert table["token_id"].to_pylist() == TOKENS.reshape(-1).tolist()
    assert table["sequence"].to_pylist() == np.repeat(np.arange(5), 7).tolist()
    assert table["position"].to_pylist() == np.tile(np.arange(7), 5).tolist()
    assert table["document"].to_pylist()[:7] == [0, 0, 0, 1, 1, 1, 1]
    assert list(token_export.token_batches(conn, new_job())) == []


def test_bare_token_ids_have_no_text_and_no_document(conn: psycopg.Connection, new_job: NewJob) -> None:
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(TOKENS, tokenizer_sha256=None), lambda: pytest.fail("not needed"))
    found = datasets.tokens(conn, _job_with(conn, new_job, dataset_id), 0, 0, 1)
    assert [(one.text, one.document) for one in found] == [(None, None)]


def test_the_same_tokens_under_two_tokenizers_are_two_data_sets(conn: psycopg.Connection) -> None:
    with conn.transaction():
        first = datasets.store(conn, TokenSet(TOKENS), lambda: WORDS)
        second = datasets.store(conn, TokenSet(TOKENS, tokenizer_sha256="b" * 64), lambda: WORDS)
        assert datasets.store(conn, TokenSet(TOKENS), lambda: WORDS) == first
    assert first != second


def test_many_sequences_are_stored_across_chunks(conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_CHUNK_TOKENS", 100)
    tokens = np.random.default_rng(1).integers(0, 2**31 - 1, (150, 9), dtype=np.int32)
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(tokens, tokenizer_sha256=None), list)
    rows = conn.execute(
        "SELECT token_ids FROM keyhole.sequence WHERE dataset_id = %s ORDER BY sequence", (dataset_id,)
    ).fetchall()
    np.testing.assert_array_equal(np.array([row[0] for row in rows]), tokens)


def test_workers_that_store_at_once_get_one_row_and_its_tokens(
    database: MigratedDatabase, conn: psycopg.Connection
) -> None:
    def work(_: int) -> tuple[int, int, int]:
        with database.connect() as own, own.transaction():
            model_id = models.store(own, "identity", "builtin:x", "llama", {"layers": 2})
            dataset_id = datasets.store(own, TokenSet(TOKENS, DOCUMENTS), lambda: WORDS)
            counters.increment(own, "stored")
            stored = own.execute("SELECT count(*) FROM keyhole.sequence WHERE dataset_id = %s", (dataset_id,))
            (sequences,) = stored.fetchone() or (0,)
            time.sleep(0.05)
            return model_id, dataset_id, sequences

    with ThreadPoolExecutor(8) as pool:
        assert len({(model, data, sequences) for model, data, sequences in pool.map(work, range(16))}) == 1
    assert conn.execute("SELECT count(*) FROM keyhole.vocabulary").fetchone() == (50,)
    assert conn.execute("SELECT count(*) FROM keyhole.sequence_document").fetchone() == (10,)
    assert counters.all_counters(conn) == {"stored": 16}


def test_one_token_of_a_long_data_set_is_found_by_index(conn: psycopg.Connection, new_job: NewJob) -> None:
    tokens = np.zeros((400, 64), np.int32)
    with conn.transaction():
        dataset_id = datasets.store(conn, TokenSet(tokens), lambda: WORDS)
    conn.execute("ANALYZE keyhole.sequence, keyhole.vocabulary, keyhole.sequence_document")
    job_id = _job_with(conn, new_job, dataset_id)
    query = f"SELECT text FROM analysis.token WHERE job_id = {job_id} AND sequence = 7 AND position = 5"
    plan = "\n".join(row[0] for row in conn.execute(f"EXPLAIN {query}"))
    assert "sequence_pkey" in plan
    assert "Seq Scan on sequence " not in plan
    assert conn.execute(query).fetchall() == [("<0>",)]
