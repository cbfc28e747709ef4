"""Rows per second of db.copy, against raw COPY of the same bytes: ``python -m benchmarks.copy_rows [--rows N]``.

Raw means bytes made beforehand, sent by the same driver in the same chunks, into a like partition: what PostgreSQL
and the connection take by themselves. Rounds alternate, so that both meet the same machine; medians are printed.
With KEYHOLE_DATABASE_URL unset a PostgreSQL is started for the run.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql

from db import copy, migrate, partitions
from db.connection import connect
from db.repositories import jobs
from services.contracts.kinds import KINDS
from services.contracts.settings import settings
from services.local.postgres import EmbeddedPostgres

TABLE = KINDS["gradient_scale"].tables[0]
TARGET_RATIO = 0.8
TARGET_ROWS_PER_S = 1_000_000


@contextmanager
def database_url() -> Iterator[str]:
    """The configured database, or an embedded one that lasts as long as the run."""
    configured = settings().database_url
    if configured is not None:
        yield configured.get_secret_value()
        return
    with tempfile.TemporaryDirectory(prefix="kh-") as folder:
        Path(folder).chmod(0o711)
        server = EmbeddedPostgres(Path(folder) / "postgres")
        server.start()
        try:
            migrate.upgrade(server.owner_url())
            yield server.owner_url()
        finally:
            server.stop()


def columns(rows: int) -> dict[str, np.ndarray]:
    """One shard of a 28-layer model with 12 heads, in the order a probe writes it."""
    index = np.arange(rows)
    random = np.random.default_rng(0)
    return {
        "layer": (index * 28 // rows).astype(np.int16),
        "head": (index * 336 // rows % 12).astype(np.int16),
        "sequence": (index // 248 % 64).astype(np.int32),
        "query": (32 + 4 * (index % 248)).astype(np.int32),
        "log10_d_a": random.gamma(4.0, 1.0, rows).astype(np.float32),
        "log10_d_c": random.gamma(1.0, 0.7, rows).astype(np.float32),
    }


def new_job(conn: psycopg.Connection) -> int:
    with conn.transaction():
        job_id = jobs.insert(
            conn,
            jobs.NewJob(
                kind="gradient_scale",
                version=1,
                queue="probe",
                priority=0,
                label="benchmark",
                model_source="builtin:none",
                model_identity="none",
                dataset_source="builtin:none",
                dataset_identity="none",
                parameters={},
                reuse_key="benchmark",
                time_limit_s=1,
                max_attempts=1,
                submitted_by=None,
                shards=[],
            ),
        )
        partitions.create(conn, TABLE.name, job_id)
    return job_id


def raw_bytes(conn: psycopg.Connection, job_id: int, rows: int) -> list[bytes]:
    """What copy_rows sends, as COPY gives it back, in chunks of the same size."""
    statement = sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(partitions.storage(conn, TABLE.name, job_id))
    with conn.cursor().copy(statement) as stream:
        everything = b"".join(stream)
    chunk = len(everything) * copy.CHUNK_ROWS // rows
    return [everything[start : start + chunk] for start in range(0, len(everything), chunk)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    data = columns(options.rows)
    seconds: dict[str, list[float]] = {"copy_rows": [], "raw COPY": []}
    with database_url() as url, connect(url) as conn:
        job_id = new_job(conn)
        statement = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(partitions.storage(conn, TABLE.name, job_id))
        copy.copy_rows(conn, TABLE, job_id, data)
        chunks = raw_bytes(conn, job_id, options.rows)
        for round_ in range(options.rounds):
            for name in list(seconds)[:: 1 if round_ % 2 else -1]:
                partitions.drop(conn, TABLE.name, job_id)  # empties it
                started = time.perf_counter()
                if name == "copy_rows":
                    copy.copy_rows(conn, TABLE, job_id, data)
                else:
                    with conn.cursor().copy(statement) as stream:
                        for chunk in chunks:
                            stream.write(chunk)
                seconds[name].append(time.perf_counter() - started)
        with conn.transaction():
            partitions.drop(conn, TABLE.name, job_id)
            conn.execute("DELETE FROM keyhole.job WHERE id = %s", (job_id,))
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratio = medians["raw COPY"] / medians["copy_rows"]
    for name, taken in medians.items():
        print(f"{name:<10} {options.rows / taken:>12,.0f} rows/s   {taken * 1000:>7.0f} ms for {options.rows:,} rows")
    print(f"ratio      {ratio:.2f} of raw COPY (aim: {TARGET_RATIO}, and {TARGET_ROWS_PER_S:,} rows/s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
