"""Jobs as the services would leave them, written straight into the tables."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from db import copy, partitions, summaries
from services.contracts.kinds import KINDS

KIND = KINDS["gradient_scale"]
START = datetime(2026, 9, 4, 12, 0, 0, tzinfo=UTC)


def insert_job(conn: psycopg.Connection, state: str = "queued", **columns: Any) -> int:
    """One job; ``columns`` override what is otherwise typical of its state."""
    started = None if state == "queued" else START + timedelta(seconds=4)
    finished = START + timedelta(seconds=94) if state in ("succeeded", "failed", "cancelled") else None
    row: dict[str, Any] = {
        "kind": KIND.name,
        "version": KIND.version,
        "queue": KIND.queue,
        "state": state,
        "phase": "queued" if state == "queued" else "done" if finished else "measuring",
        "model_source": "builtin:smollm2-135m-instruct",
        "model_identity": "sha256:0123",
        "dataset_source": "builtin:python-docs",
        "dataset_identity": "sha256:4567",
        "parameters": Jsonb(KIND.parameters().model_dump()),
        "reuse_key": "key",
        "time_limit_s": 86_400,
        "max_attempts": 3,
        "shards": 8,
        "shards_done": 8 if state == "succeeded" else 0,
        "created_at": START,
        "started_at": started,
        "finished_at": finished,
    } | columns
    statement = sql.SQL("INSERT INTO keyhole.job ({}) VALUES ({}) RETURNING id").format(
        sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
    )
    inserted = conn.execute(statement, row).fetchone()
    assert inserted is not None
    return inserted[0]


def insert_event(conn: psycopg.Connection, job_id: int, seconds: float, type_: str, **data: Any) -> None:
    conn.execute(
        "INSERT INTO keyhole.job_event (job_id, at, type, data) VALUES (%s, %s, %s, %s)",
        (job_id, START + timedelta(seconds=seconds), type_, Jsonb(data)),
    )


def insert_attempt(conn: psycopg.Connection, job_id: int, number: int, **columns: Any) -> None:
    row = {
        "job_id": job_id,
        "number": number,
        "worker": "node-1",
        "device": "cpu",
        "started_at": START,
        "lease_until": START,
        "ended_at": None,
        "outcome": None,
        "detail": None,
    } | columns
    conn.execute(
        sql.SQL("INSERT INTO keyhole.attempt ({}) VALUES ({})").format(
            sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
        ),
        row,
    )


def insert_dataset(conn: psycopg.Connection, words: list[list[str]]) -> int:
    """A data set whose tokens are these words, one list a sequence."""
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(word for line in words for word in line))}
    tokenizer = conn.execute(
        "INSERT INTO keyhole.tokenizer (sha256, vocabulary_size) VALUES ('t', %s) RETURNING id", (len(vocabulary),)
    ).fetchone()
    assert tokenizer is not None
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO keyhole.vocabulary VALUES (%s, %s, %s)",
            [(tokenizer[0], index, word) for word, index in vocabulary.items()],
        )
    dataset = conn.execute(
        "INSERT INTO keyhole.dataset (fingerprint, identity, source, tokenizer_id, sequences, length) "
        "VALUES ('f', 'i', 'builtin:python-docs', %s, %s, %s) RETURNING id",
        (tokenizer[0], len(words), len(words[0])),
    ).fetchone()
    assert dataset is not None
    for sequence, line in enumerate(words):
        conn.execute(
            "INSERT INTO keyhole.sequence VALUES (%s, %s, %s)", (dataset[0], sequence, [vocabulary[w] for w in line])
        )
    return dataset[0]


def gradient_scale_columns(
    layers: int, heads: int, sequences: int, queries: list[int], seed: int = 0
) -> dict[str, np.ndarray]:
    """Rows in which D_a grows with the layer and D_c does not."""
    rng = np.random.default_rng(seed)
    layer, head, sequence, query = (
        axis.ravel() for axis in np.meshgrid(range(layers), range(heads), range(sequences), queries, indexing="ij")
    )
    return {
        "layer": layer.astype(np.int16),
        "head": head.astype(np.int16),
        "sequence": sequence.astype(np.int32),
        "query": query.astype(np.int32),
        "log10_d_a": np.abs(rng.normal(1.0 + layer, 0.3)).astype(np.float32),
        "log10_d_c": np.abs(rng.normal(0.7, 0.1, len(layer))).astype(np.float32),
    }


def insert_result(conn: psycopg.Connection, columns: dict[str, np.ndarray], **job: Any) -> int:
    """A succeeded job with these rows and their summaries."""
    job_id = insert_job(conn, "succeeded", rows=len(columns["layer"]), **job)
    with conn.transaction():
        partitions.create(conn, "gradient_scale", job_id)
        copy.copy_rows(conn, KIND.tables[0], job_id, columns)
    summaries.compute(conn, job_id, KIND.metrics)
    return job_id
