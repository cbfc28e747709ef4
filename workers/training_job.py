"""Serving an attempt on a training job: put the run together where it stopped, and claim segment after segment.

A segment is a shard of the job, a number of steps; one attempt at a time trains a run, so that it gets them in order.
The state with which a segment ends becomes visible in the transaction that marks it done: whatever kills the process,
the next attempt begins where the last finished segment ended and computes the same trajectory.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import Connection

from db import stored_files
from db.repositories import attempts, checkpoints, counters, events, jobs, models, runs, shards
from db.repositories.checkpoints import CheckpointRow
from db.repositories.jobs import JobRow
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.settings import Settings
from services.contracts.settings import settings as settings_of_process
from services.contracts.states import AttemptOutcome, JobState
from services.contracts.training.training import TrainingParameters
from workers import checkpoint_cache, launching, training_ranks
from workers.bench import surroundings
from workers.lifecycle import Ledger
from workers.measuring import ClaimLostError
from workers.models.memory import training_bytes
from workers.models.staging import folder_of_this_process
from workers.training import assembly
from workers.training.assembly import Assembled, Order
from workers.training.divergence import DivergedError
from workers.training.ranks import Ranks
from workers.training_ranks import Others
from workers.training_sink import DatabaseSink

_DECIDES = ("device", "dtype", "torch", "threads")  # surroundings on which the last bits of a run depend


@dataclass(frozen=True)
class Member:
    """The job that is trained, under its attempt."""

    token: UUID
    job: JobRow
    run_id: int
    parameters: TrainingParameters


def run(attempt_token: UUID, device: str, settings: Settings, ledger: Ledger) -> None:
    """Serve an attempt until its run has taken its last step, and end the job."""
    member = ledger.transact(lambda conn: _member(conn, attempt_token))
    if member is None:
        return
    processes = member.parameters.processes
    if processes > 1 and member.job.shards_done < member.job.shards:
        ledger.close()
        launching.launch(processes, device, run_rank, str(attempt_token), device)
    else:
        _serve(member, device, settings, ledger, Ranks())


def run_rank(ranks: Ranks, attempt_token: str, device: str) -> None:
    """One of several processes that serve an attempt; the first does as if it were alone."""
    configuration = settings_of_process()
    if not ranks.first:
        training_ranks.follow(ranks, device, configuration)
        return
    assert configuration.database_url is not None
    life, token = configuration.life, UUID(attempt_token)
    url, patience_s = configuration.database_url.get_secret_value(), life.lease_s + life.database_grace_s
    ledger = Ledger(url, patience_s, attempts.connection_name(token))
    member = ledger.transact(lambda conn: _member(conn, token))
    if member is None:
        raise launching.OverError
    _serve(member, device, configuration, ledger, ranks)


def _serve(member: Member, device: str, settings: Settings, ledger: Ledger, ranks: Ranks) -> None:
    if member.job.shards_done < member.job.shards:
        try:
            with folder_of_this_process(settings.cache / "training") as folder:
                _train(member, device, settings, ledger, folder, Others(ranks))
        except ClaimLostError:  # cancelled, or another attempt goes on
            ledger.transact(lambda conn: counters.increment(conn, "duplicates_refused"))
            if ranks.world > 1:
                raise launching.OverError from None
            return
    with suppress(ClaimLostError):
        ledger.transact(lambda conn: _succeed(conn, member))


def _member(conn: Connection, attempt_token: UUID) -> Member | None:
    row = conn.execute(
        "SELECT job_id FROM keyhole.attempt WHERE token = %s AND ended_at IS NULL", (attempt_token,)
    ).fetchone()
    job = jobs.get(conn, row[0]) if row else None
    if job is None:
        return None
    kind = KINDS[job.kind]
    if kind.version != job.version:
        raise KeyholeError(
            ErrorCode.UNEXPECTED,
            f"This worker computes {job.kind} in version {kind.version}; the job asks for version {job.version}.",
            "Workers and API must run the same release: upgrade the workers, then retry the job.",
        )
    parameters = kind.parameters.model_validate(job.parameters)
    assert isinstance(parameters, TrainingParameters)
    assert job.run_id is not None, "a training job is inserted with its run"
    return Member(attempt_token, job, job.run_id, parameters)


def _train(member: Member, device: str, settings: Settings, ledger: Ledger, folder: Path, others: Others) -> None:
    started = time.monotonic()
    found = ledger.transact(lambda conn: checkpoints.newest_resumable(conn, member.run_id))
    if found is not None:
        ledger.transact(lambda conn: stored_files.download(conn, found.id, folder, names=assembly.CHECKPOINT_FILES))
    pinned = ledger.transact(lambda conn: runs.pinned(conn, member.run_id))
    with _model_folder(member, settings, wanted=found is None) as model_folder:
        order, checkpoint = _order(member, model_folder, pinned), None if found is None else folder
        others.assemble(order, checkpoint)
        made = assembly.assembled(
            order,
            checkpoint,
            device,
            settings,
            ranks=others.ranks,
            phase=lambda name: ledger.transact(lambda conn: jobs.set_phase(conn, member.job.id, name)),
        )
        others.ranks.wait()  # until they have read the folders too
    trainer = made.trainer
    environment = surroundings(device, member.parameters.dtype)
    told = environment | {
        "memory_estimate_bytes": training_bytes(made.architecture, member.parameters),
        "preparation_s": round(time.monotonic() - started, 3),
    }
    ledger.transact(lambda conn: _describe(conn, member, made, told))
    ledger.transact(lambda conn: jobs.set_phase(conn, member.job.id, "training"))
    sink = DatabaseSink(ledger, member.run_id, trainer, made.tokenizer, folder, settings.checkpoint_store, environment)
    begun = False
    while (segment := ledger.transact(lambda conn: shards.claim(conn, member.token))) is not None:
        stop = segment.first_sequence + segment.sequences
        if not segment.first_sequence <= trainer.step < stop:
            raise _state_gone(member, segment.first_sequence, found)
        sink.enter(segment)
        if not begun:
            begun = True
            if found is None:
                others.begin()
                trainer.begin(sink)
            else:
                ledger.transact(lambda conn: _tell_resumed(conn, member, found, made, environment))
        others.advance(stop)
        try:
            due = trainer.advance(stop, sink)
        except DivergedError as error:
            sink.flush()
            raise ledger.transact(partial(_diverged, member=member, error=error)) from error
        sink.finish(due)
    others.end()


def _model_folder(member: Member, settings: Settings, *, wanted: bool) -> AbstractContextManager[Path | None]:
    """The files of the checkpoint that a run starts from, if it starts from one now."""
    if not wanted:
        return nullcontext()
    return checkpoint_cache.opened(member.job.model_source, member.job.model_identity, settings)


def _order(member: Member, model_folder: Path | None, pinned: Mapping[str, str]) -> Order:
    job = member.job
    return Order(
        job.model_source,
        job.model_identity,
        job.dataset_source,
        job.dataset_identity,
        member.parameters,
        model_folder,
        pinned,
    )


def _describe(conn: Connection, member: Member, made: Assembled, environment: dict[str, Any]) -> None:
    """Store what the run is made of; the model is the one it started from."""
    job, architecture = member.job, made.architecture
    jobs.describe(
        conn,
        job.id,
        model_id=models.store(
            conn, job.model_identity, job.model_source, architecture.model_type, asdict(architecture)
        ),
        environment=environment,
        checks=None if made.parity is None else {"parity": made.parity},
    )


def _tell_resumed(
    conn: Connection, member: Member, found: CheckpointRow, made: Assembled, environment: dict[str, Any]
) -> None:
    """An event that says from where a run goes on, and what is not as it was: then the last bits may differ."""
    before = made.stored_with or {}
    changed = {
        name: [before.get(name), environment[name]] for name in _DECIDES if before.get(name) != environment[name]
    }
    detail = {"step": found.step, "checkpoint": found.id, **({"changed": changed} if changed else {})}
    events.append(conn, member.job.id, "resumed", detail)


def _state_gone(member: Member, first: int, found: CheckpointRow | None) -> KeyholeError:
    there = "none is there" if found is None else f"the newest is of step {found.step}"
    return KeyholeError(
        ErrorCode.NOT_FOUND,
        f"Run {member.run_id} is to go on from the state of step {first}, but {there}.",
        "Its checkpoint was deleted: the job cannot go on. Submit it again with --force to train from the start.",
    )


def _diverged(conn: Connection, member: Member, error: DivergedError) -> KeyholeError:
    sound = [row for row in checkpoints.of_run(conn, member.run_id) if row.step <= error.sound_step]
    last = f" The last checkpoint before is checkpoint:{sound[-1].id}, of step {sound[-1].step}." if sound else ""
    go_on = f", or go on from there with other settings: --model checkpoint:{sound[-1].id}" if sound else ""
    return KeyholeError(
        ErrorCode.DIVERGED,
        f"Run {member.run_id} diverged at step {error.step}: {error.what}.{last}",
        f"Submit it with a lower optimizer.learning_rate, a longer schedule.warmup_steps or a smaller clip{go_on}.",
    )


def _succeed(conn: Connection, member: Member) -> None:
    """Mark the job succeeded if all its segments are done."""
    if jobs.lock(conn, member.job.id) is not JobState.RUNNING:
        raise ClaimLostError
    now = jobs.get(conn, member.job.id)
    if now is None or now.shards_done < now.shards:
        return
    jobs.set_state(conn, member.job.id, JobState.SUCCEEDED)
    attempts.end(conn, member.token, AttemptOutcome.COMPLETED)
