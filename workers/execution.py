"""The child of one attempt: ``python -m workers.execution DEVICE REPORT_FD ALIVE_FD``, started by supervisor.py.

Loads the model once, claims shard after shard, and writes each shard's rows in the transaction that marks it done.
"""

import errno
import json
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import psycopg
from psycopg import Connection

from db import copy, partitions, summaries
from db.repositories import attempts, counters, datasets, jobs, models, shards
from db.repositories.jobs import JobRow
from db.repositories.shards import ClaimedShard
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS, Kind
from services.contracts.settings import Settings, settings
from services.contracts.states import AttemptOutcome, JobState
from workers import log
from workers.lifecycle import Ledger

if TYPE_CHECKING:
    from workers.models.loaded import LoadedModel

_BEAT_S = 1.0
_FREE_AND_RETRY = "Free some, then: keyhole retry ID. Shards that are done are not computed again."


class ClaimLostError(Exception):
    """Another attempt owns the work by now, or the job was cancelled: nothing must be written."""


def main() -> None:
    device, report, alive = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    threading.Thread(target=_leave_with_the_worker, args=(alive,), daemon=True).start()
    threading.Thread(target=_beat, args=(report,), daemon=True).start()
    log.configure(attempt=os.environ["KEYHOLE_ATTEMPT"])
    try:
        _run(UUID(os.environ["KEYHOLE_ATTEMPT"]), device, settings())
    except KeyholeError as error:
        _report_error(report, error.code, error.message, error.hint)
    except Exception as error:  # whatever it was, the user gets to read it
        _report_error(report, *_classified(error))
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # without waiting for threads of libraries; the error, if any, is in the report


def _run(attempt_token: UUID, device: str, configuration: Settings) -> None:
    assert configuration.database_url is not None
    patience_s = configuration.life.lease_s + configuration.life.database_grace_s
    url = configuration.database_url.get_secret_value()
    ledger = Ledger(url, patience_s, attempts.connection_name(attempt_token))
    job = ledger.transact(lambda conn: _job_of(conn, attempt_token))
    if job is None:
        return
    kind = KINDS.get(job.kind)
    if kind is None or kind.version != job.version:
        raise KeyholeError(
            ErrorCode.UNEXPECTED,
            f"This worker computes {job.kind} in version {kind.version if kind else 'none'}; the job asks for version "
            f"{job.version}.",
            "Workers and API must run the same release: upgrade the workers, then retry the job.",
        )
    if job.shards_done < job.shards:
        _measure(job, kind, attempt_token, device, configuration, ledger)
    _finish(job, kind, attempt_token, ledger)


def _job_of(conn: Connection, attempt_token: UUID) -> JobRow | None:
    row = conn.execute(
        "SELECT job_id FROM keyhole.attempt WHERE token = %s AND ended_at IS NULL", (attempt_token,)
    ).fetchone()
    return jobs.get(conn, row[0]) if row else None


def _measure(
    job: JobRow, kind: Kind, attempt_token: UUID, device: str, configuration: Settings, ledger: Ledger
) -> None:
    """Load model and data, then compute shards until none is open."""
    import torch  # here and not above: the device is chosen and the beat goes by now

    from workers.data import read_sequences, vocabulary_texts
    from workers.models import load_model
    from workers.models.memory import estimate_bytes
    from workers.models.others import OtherModels
    from workers.probes import PROBES, passes
    from workers.probes.passes import PassProbe

    parameters = kind.parameters.model_validate(job.parameters)

    def phase(name: str) -> None:
        ledger.transact(lambda conn: jobs.set_phase(conn, job.id, name))

    phase("loading model")
    started = time.monotonic()
    loaded = load_model(job.model_source, device=device, dtype=parameters.dtype, settings=configuration)
    _require_unchanged(loaded, job.model_source, job.model_identity)
    phase("reading data")
    token_set = read_sequences(
        job.dataset_source,
        tokenizer=loaded.tokenizer,
        vocabulary_size=loaded.architecture.vocabulary_size,
        sequences=parameters.sequences,
        length=parameters.length,
        settings=configuration,
    )
    if token_set.identity != job.dataset_identity:
        raise KeyholeError(
            ErrorCode.DATASET_CHANGED,
            f"The data set at {job.dataset_source} is now {token_set.identity}; submitted was {job.dataset_identity}.",
            "Submit the job again to measure with the data as it is now.",
        )
    environment = {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "dtype": parameters.dtype,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "keyhole": version("keyhole"),
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "threads": torch.get_num_threads(),
        "preparation_s": round(time.monotonic() - started, 3),
        "memory_estimate_bytes": estimate_bytes(
            loaded.architecture, parameters.length, parameters.batch, parameters.dtype
        ),
    }

    def vocabulary() -> list[str]:
        return [] if loaded.tokenizer is None else vocabulary_texts(loaded.tokenizer)

    def describe(conn: Connection) -> None:
        architecture = loaded.architecture
        model_id = models.store(conn, loaded.identity, job.model_source, architecture.model_type, asdict(architecture))
        dataset_id = datasets.store(conn, token_set, vocabulary)
        jobs.describe(
            conn,
            job.id,
            model_id=model_id,
            dataset_id=dataset_id,
            environment=environment,
            checks={"parity": loaded.parity},
        )
        for table in kind.tables:
            partitions.create(conn, table.name, job.id)

    ledger.transact(describe)
    phase("measuring")
    probe = PROBES[kind.name]
    others = OtherModels(
        [
            partial(_other_model, job.id, other, device, parameters.dtype, configuration, ledger)
            for other in ledger.transact(lambda conn: jobs.other_models(conn, job.id))
        ]
    )
    while (shard := ledger.transact(lambda conn: shards.claim(conn, attempt_token))) is not None:
        tokens = token_set.token_ids[shard.first_sequence : shard.first_sequence + shard.sequences]
        if isinstance(probe, PassProbe):
            measurement = passes.measure(probe, loaded, parameters, tokens, shard.first_sequence)
        else:
            measurement = probe.measure(loaded, parameters, tokens, shard.first_sequence, others)
        try:
            _write(ledger, kind, shard, measurement.rows, measurement.checks)
        except ClaimLostError:
            ledger.transact(lambda conn: counters.increment(conn, "duplicates_refused"))
            return


def _require_unchanged(loaded: "LoadedModel", source: str, identity: str) -> None:
    if loaded.identity != identity:
        raise KeyholeError(
            ErrorCode.MODEL_CHANGED,
            f"The model at {source} is now {loaded.identity}; submitted was {identity}.",
            "Submit the job again to measure the model as it is now.",
        )


def _other_model(
    job_id: int, other: jobs.OtherModel, device: str, dtype: str, configuration: Settings, ledger: Ledger
) -> "LoadedModel":
    from workers.models import load_model

    loaded = load_model(other.source, device=device, dtype=dtype, settings=configuration)
    _require_unchanged(loaded, other.source, other.identity)

    def describe(conn: Connection) -> None:
        architecture = loaded.architecture
        model_id = models.store(conn, loaded.identity, other.source, architecture.model_type, asdict(architecture))
        jobs.describe_other_model(conn, job_id, other.number, model_id)

    ledger.transact(describe)
    return loaded


def _write(
    ledger: Ledger,
    kind: Kind,
    shard: ClaimedShard,
    rows: Mapping[str, Mapping[str, np.ndarray]],
    checks: Mapping[str, float],
) -> None:
    """Copy a shard's rows and mark it done, in one transaction; after a lost connection find out which it was."""

    def write(conn: Connection) -> None:
        if shards.is_done(conn, shard):
            return
        written = sum(copy.copy_rows(conn, table, shard.job_id, rows[table.name]) for table in kind.tables)
        if not shards.finish(conn, shard, written, checks):
            raise ClaimLostError

    ledger.transact(write)


def _finish(job: JobRow, kind: Kind, attempt_token: UUID, ledger: Ledger) -> None:
    """If every shard is done, compute the summaries and mark the job succeeded; one child does it at a time."""

    def all_done(conn: Connection) -> bool:
        now = jobs.get(conn, job.id)
        return now is not None and now.state == JobState.RUNNING and now.shards_done == now.shards

    if not ledger.transact(all_done):
        return
    ledger.transact(lambda conn: jobs.set_phase(conn, job.id, "summarizing"))

    def summarize(conn: Connection) -> None:
        locked = conn.execute(
            "SELECT pg_try_advisory_xact_lock(hashtextextended('keyhole.summaries', %s))", (job.id,)
        ).fetchone()
        if not (locked and locked[0] and all_done(conn)):
            return
        for table in kind.tables:
            partitions.finish(conn, table.name, job.id)
        summaries.compute(conn, job.id, kind.metrics)
        now = jobs.get(conn, job.id)
        checks = ((now.checks if now else None) or {}) | _combined(shards.checks(conn, job.id))
        if jobs.lock(conn, job.id) is not JobState.RUNNING:
            raise ClaimLostError
        jobs.describe(conn, job.id, checks=checks)
        jobs.set_state(conn, job.id, JobState.SUCCEEDED)
        attempts.end(conn, attempt_token, AttemptOutcome.COMPLETED)

    with suppress(ClaimLostError):  # cancelled meanwhile
        ledger.transact(summarize)


def _combined(per_shard: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Checks of the whole job: the largest of what starts with max_, the mean of other numbers, else the last."""
    gathered: defaultdict[str, list[Any]] = defaultdict(list)
    for one in per_shard:
        for name, value in one.items():
            gathered[name].append(value)
    combined: dict[str, Any] = {}
    for name, values in gathered.items():
        if name.startswith("max_"):
            combined[name] = max(values)
        elif all(isinstance(value, int | float) for value in values):
            combined[name] = sum(values) / len(values)
        else:
            combined[name] = values[-1]
    return combined


def _classified(error: Exception) -> tuple[ErrorCode, str, str]:
    """Code, message and hint of an error that is not a KeyholeError."""
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, psycopg.errors.DiskFull):
        return ErrorCode.DISK_FULL, f"No space is left for the database. {text}", _FREE_AND_RETRY
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ErrorCode.DISK_FULL, f"No space is left on the worker {socket.gethostname()}. {text}", _FREE_AND_RETRY
    if isinstance(error, psycopg.Error):
        return ErrorCode.DATABASE, text, "The job is tried again; look whether the database is up."
    if isinstance(error, MemoryError) or "out of memory" in text.lower() or "can't allocate memory" in text:
        return ErrorCode.OUT_OF_MEMORY, text, "Lower batch or length, or use dtype bfloat16, and submit again."
    return ErrorCode.UNEXPECTED, text, "This looks like a defect; the traceback says where."


def _report_error(report: int, code: ErrorCode, message: str, hint: str) -> None:
    text = traceback.format_exc()
    with suppress(OSError):  # the log may be on the disk that is full
        print(text, file=sys.stderr, flush=True)
    line = json.dumps({"type": "error", "code": code, "message": message, "hint": hint, "traceback": text})
    _send(report, line)


def _beat(report: int) -> None:
    while True:
        _send(report, '{"type": "beat"}')
        time.sleep(_BEAT_S)


_report_lock = threading.Lock()


def _send(report: int, line: str) -> None:
    data = line.encode() + b"\n"
    with _report_lock, suppress(BrokenPipeError):
        while data:
            data = data[os.write(report, data) :]


def _leave_with_the_worker(alive: int) -> None:
    """End this process when the worker is gone: only the worker holds the other end of the pipe."""
    os.read(alive, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
