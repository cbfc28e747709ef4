"""Write a job's tables as Parquet with a manifest, a bounded number of rows in memory at a time."""

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from services.client import tables
from services.client.connection import Connection
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import SummaryRow
from services.contracts.states import JobState
from services.contracts.tables import TOKEN_TABLE

if TYPE_CHECKING:
    from services.client import Job

MANIFEST = "manifest.json"
_GROUP_ROWS = 500_000  # rows of a Parquet row group: about 15 MB of a narrow table
_SUMMARY_TYPES = {
    "layer": pa.int16(),
    "head": pa.int16(),
    "metric": pa.string(),
    "n": pa.int64(),
    "n_infinite": pa.int64(),
    "n_undefined": pa.int64(),
    "histogram": pa.list_(pa.int64()),
}
SUMMARY_SCHEMA = pa.schema(
    [("job_id", pa.int32()), ("level", pa.string())]
    + [(name, _SUMMARY_TYPES.get(name, pa.float64())) for name in SummaryRow.model_fields]
)


def export(connection: Connection, job: "Job", folder: Path) -> Path:
    """One Parquet file per table, one each for tokens and summaries, and the manifest, which is written last.

    Raises KeyholeError: conflict for a job that has not succeeded, unavailable when rows are missing on arrival.
    """
    if job.refresh().state is not JobState.SUCCEEDED:
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"Job {job.id} is {job.state}; only a job that succeeded is exported.",
            f"See why: keyhole job {job.id}   Queue it again: keyhole retry {job.id}"
            if job.state.terminal
            else f"Wait for it: keyhole logs {job.id} --follow",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # an older one must not vouch for files half replaced
    files: list[dict[str, Any]] = []
    for table in [*job.tables(), TOKEN_TABLE]:
        with tables.opened(connection, job.id, table) as body:
            batches = tables.reader(body)
            files.append(_write(folder, table, batches.schema, batches))
    stored = job.detail.progress.rows
    arrived = sum(file["rows"] for file in files if file["table"] != TOKEN_TABLE)
    if arrived != stored:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE, f"Job {job.id} has {stored:,} rows, but {arrived:,} arrived.", "Export it again."
        )
    rows = [{"job_id": job.id, "level": row.level} | row.model_dump() for row in job.summary_rows()]
    summary = pa.RecordBatch.from_pylist(rows, schema=SUMMARY_SCHEMA)
    files.append(_write(folder, "summary", SUMMARY_SCHEMA, [summary]))
    manifest = {
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "job": job.detail.model_dump(mode="json", exclude={"reused", "attempts"}),
        "files": files,
    }
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=2) + "\n")
    return path


def read_manifest(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _write(folder: Path, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    """Write one file under a temporary name, rename it when whole, and return its entry in the manifest."""
    path = folder / f"{table}.parquet"
    unfinished = path.with_suffix(".parquet.part")
    rows = 0
    waiting: list[pa.RecordBatch] = []
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for batch in batches:
                rows += batch.num_rows
                waiting.append(batch)
                if sum(each.num_rows for each in waiting) >= _GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting, schema))
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, schema))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"table": table, "file": path.name, "rows": rows, "bytes": path.stat().st_size, "sha256": sha256}
