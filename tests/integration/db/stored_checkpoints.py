"""A run and small checkpoints of it, for tests of what is stored of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psycopg
from psycopg import Connection
from safetensors.numpy import save_file

from db import checkpoint_store
from db.checkpoint_store import NewCheckpoint
from db.repositories import jobs
from db.repositories.runs import NewRun, of_job
from services.contracts.states import JobState
from tests.integration.new_jobs import submission

T = TypeVar("T")
CONFIG = {"model_type": "llama", "vocab_size": 256}


def new_run(conn: Connection, state: JobState = JobState.RUNNING, name: str = "a run") -> int:
    """The run of a training job in this state."""
    with conn.transaction():
        job_id = jobs.insert(
            conn,
            submission(kind="training", queue="training", run=NewRun(name, "control", 0, 1000), reuse_key=name),
        )
        jobs.set_state(conn, job_id, state)
    run_id = of_job(conn, job_id)
    assert run_id is not None
    return run_id


def transacting(conn: Connection) -> Callable[[Callable[[Connection], T]], T]:
    """What a worker's ledger does while nothing breaks."""

    def transact(function: Callable[[Connection], T]) -> T:
        with conn.transaction():
            return function(conn)

    return transact


def write_files(folder: Path, weights: Mapping[str, np.ndarray], resume: bytes | None = None) -> dict[str, Path]:
    """config.json, model.safetensors, and a state for resuming if given; by name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"config.json": folder / "config.json", "model.safetensors": folder / "model.safetensors"}
    files["config.json"].write_text(json.dumps(CONFIG))
    save_file(dict(weights), files["model.safetensors"])
    if resume is not None:
        files["resume.safetensors"] = folder / "resume.safetensors"
        save_file({"state": np.frombuffer(resume, np.uint8)}, files["resume.safetensors"])
    return files


def store(
    conn: Connection,
    run_id: int,
    step: int,
    files: Mapping[str, Path],
    *,
    reasons: Sequence[str] = ("interval",),
    loss: float | None = None,
    config: dict[str, Any] = CONFIG,
    outside: str | None = None,
) -> int:
    """Upload and commit; returns the checkpoint's number."""
    new = NewCheckpoint(step, reasons, config, config["model_type"], loss, "resume.safetensors" in files)
    return checkpoint_store.stored(
        transacting(conn), files, outside, lambda conn, uploaded: checkpoint_store.commit(conn, run_id, new, uploaded)
    )


def count(conn: psycopg.Connection, table: str) -> int:
    row = conn.execute(f"SELECT count(*) FROM keyhole.{table}".encode()).fetchone()
    assert row is not None
    return row[0]
