"""Measuring a job in a child process: load its model and data, claim shard after shard, write rows, summarize.

Each shard's rows are written in the transaction that marks it done. Jobs that watch the same passes ride along: shards
of equal number are measured together, each job's rows in its own transaction.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
from psycopg import Connection

from db import copy, partitions, summaries
from db.repositories import attempts, counters, datasets, job_models, jobs, models, riders, shards
from db.repositories.job_models import JobModel
from db.repositories.jobs import JobRow
from db.repositories.shards import ClaimedShard
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS, Kind
from services.contracts.probes.common import ProbeParameters
from services.contracts.states import AttemptOutcome, JobState
from workers.bench import Bench, environment_of
from workers.checks import combined
from workers.data import TokenSet, vocabulary_texts
from workers.failure import Failure
from workers.lifecycle import Ledger
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.probes import PROBES, passes
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe


class ClaimLostError(Exception):
    """Another attempt owns the work by now, or the job was cancelled: nothing must be written."""


@dataclass(frozen=True)
class Member:
    """One job that is being measured, under its attempt."""

    token: UUID
    job: JobRow
    kind: Kind
    parameters: ProbeParameters


@dataclass(frozen=True)
class Prepared:
    """What the jobs of an attempt are measured with."""

    loaded: LoadedModel
    token_set: TokenSet
    environment: dict[str, Any]

    def tokens_of(self, shard: ClaimedShard) -> np.ndarray:
        return self.token_set.token_ids[shard.first_sequence : shard.first_sequence + shard.sequences]


def run(attempt_token: UUID, bench: Bench, ledger: Ledger) -> None:
    """Serve an attempt until its job has no shard left for it; the last one finishes the job."""
    leader = ledger.transact(lambda conn: _member(conn, attempt_token))
    if leader is None:
        return
    if leader.job.shards_done < leader.job.shards:
        _measure(leader, bench, ledger)
    _finish(leader, ledger)


def _member(conn: Connection, attempt_token: UUID) -> Member | None:
    row = conn.execute(
        "SELECT job_id FROM keyhole.attempt WHERE token = %s AND ended_at IS NULL", (attempt_token,)
    ).fetchone()
    job = jobs.get(conn, row[0]) if row else None
    if job is None:
        return None
    kind = KINDS.get(job.kind)
    if kind is None or kind.version != job.version:
        raise KeyholeError(
            ErrorCode.UNEXPECTED,
            f"This worker computes {job.kind} in version {kind.version if kind else 'none'}; the job asks for version "
            f"{job.version}.",
            "Workers and API must run the same release: upgrade the workers, then retry the job.",
        )
    parameters = kind.parameters.model_validate(job.parameters)
    assert isinstance(parameters, ProbeParameters), "training jobs have an attempt of another sort"
    return Member(attempt_token, job, kind, parameters)


def _measure(leader: Member, bench: Bench, ledger: Ledger) -> None:
    """Load model and data, then compute shards until none is open; jobs that ride along are finished on the way."""
    parameters = leader.parameters

    def phase(name: str) -> None:
        ledger.transact(lambda conn: jobs.set_phase(conn, leader.job.id, name))

    started = time.monotonic()
    phase("loading model")
    loaded = bench.model(leader.job.model_source, leader.job.model_identity, parameters.dtype)
    phase("reading data")
    token_set = bench.tokens(leader.job, parameters, loaded)
    environment = environment_of(loaded, parameters) | {"preparation_s": round(time.monotonic() - started, 3)}
    prepared = Prepared(loaded, token_set, environment)
    ledger.transact(lambda conn: _describe(conn, leader, prepared))
    phase("measuring")
    probe = PROBES[leader.kind.name]
    if isinstance(probe, PassProbe):
        _measure_in_passes(leader, bench, ledger, prepared)
        return
    others = OtherModels(
        [
            partial(_other_model, leader, other, bench, ledger)
            for other in ledger.transact(lambda conn: job_models.of_job(conn, leader.job.id))
        ]
    )
    while (shard := ledger.transact(lambda conn: shards.claim(conn, leader.token))) is not None:
        measured = probe.measure(loaded, parameters, prepared.tokens_of(shard), shard.first_sequence, others)
        if not _written(ledger, leader, shard, measured):
            return


def _measure_in_passes(leader: Member, bench: Bench, ledger: Ledger, prepared: Prepared) -> None:
    company = _company(leader, bench, ledger, prepared)
    while (claimed := ledger.transact(lambda conn: shards.claim(conn, leader.token))) is not None:
        together = [(leader, claimed)]
        for member in company:
            same = ledger.transact(partial(shards.claim, attempt_token=member.token, index=claimed.index))
            if same is not None:  # else another worker has it, or nobody wants it any more
                together.append((member, same))
        outcomes = passes.measure_together(
            prepared.loaded,
            [(PROBES[member.kind.name], member.parameters) for member, _ in together],  # type: ignore[misc]  # company watches passes too
            prepared.tokens_of(claimed),
            claimed.first_sequence,
        )
        # the leader last: its failure ends the process
        for (member, shard), outcome in reversed(list(zip(together, outcomes, strict=True))):
            if isinstance(outcome, Exception):
                if member is leader:
                    raise outcome
                _fail(ledger, member, outcome)
                company.remove(member)
            elif not _written(ledger, member, shard, outcome):
                if member is leader:
                    return
                company.remove(member)
    for member in company:
        _finish(member, ledger)


def _company(leader: Member, bench: Bench, ledger: Ledger, prepared: Prepared) -> list[Member]:
    """Jobs that ride along from now on."""
    lease_s = bench.settings.life.lease_s
    opened = ledger.transact(lambda conn: riders.open_riders(conn, leader.token, lease_s))
    company: list[Member] = []
    for attempt in opened:
        try:
            member = ledger.transact(lambda conn, of=attempt: _member(conn, of.token))
        except KeyholeError as error:
            ledger.transact(lambda conn, of=attempt, why=error: _fail_attempt(conn, of.token, why))
            continue
        if member is not None:
            ledger.transact(lambda conn, of=member: _describe(conn, of, prepared))
            ledger.transact(lambda conn, of=member: jobs.set_phase(conn, of.job.id, "measuring"))
            company.append(member)
    return company


def _describe(conn: Connection, member: Member, prepared: Prepared) -> None:
    """Store what the job runs on, and make room for its rows."""
    loaded = prepared.loaded
    model_id = _store_model(conn, loaded, member.job.model_source)
    dataset_id = datasets.store(
        conn, prepared.token_set, lambda: [] if loaded.tokenizer is None else vocabulary_texts(loaded.tokenizer)
    )
    jobs.describe(
        conn,
        member.job.id,
        model_id=model_id,
        dataset_id=dataset_id,
        environment=prepared.environment,
        checks={"parity": loaded.parity},
    )
    for table in member.kind.tables:
        partitions.create(conn, table.name, member.job.id)


def _store_model(conn: Connection, loaded: LoadedModel, source: str) -> int:
    architecture = loaded.architecture
    return models.store(conn, loaded.identity, source, architecture.model_type, asdict(architecture))


def _other_model(member: Member, other: JobModel, bench: Bench, ledger: Ledger) -> LoadedModel:
    loaded = bench.fresh_model(other.source, other.identity, member.parameters.dtype)
    ledger.transact(
        lambda conn: job_models.describe(conn, member.job.id, other.number, _store_model(conn, loaded, other.source))
    )
    return loaded


def _written(ledger: Ledger, member: Member, shard: ClaimedShard, measured: Measurement) -> bool:
    """Write a shard's rows; False if somebody else owns it by now."""
    try:
        _write(ledger, member.kind, shard, measured.rows, measured.checks)
    except ClaimLostError:
        ledger.transact(lambda conn: counters.increment(conn, "duplicates_refused"))
        return False
    return True


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


def _fail(ledger: Ledger, member: Member, error: Exception) -> None:
    """Fail a job that rode along, and not the others."""
    ledger.transact(lambda conn: _fail_attempt(conn, member.token, error))


def _fail_attempt(conn: Connection, token: UUID, error: Exception) -> None:
    failure = Failure.of(error)
    attempts.fail(conn, token, AttemptOutcome.FAILED, failure.code, failure.message, failure.hint, failure.traceback)


def _finish(member: Member, ledger: Ledger) -> None:
    """If every shard is done, compute the summaries and mark the job succeeded; one child does it at a time."""
    job = member.job

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
        for table in member.kind.tables:
            partitions.finish(conn, table.name, job.id)
        summaries.compute(conn, job.id, member.kind.metrics)
        now = jobs.get(conn, job.id)
        checks = ((now.checks if now else None) or {}) | combined(shards.checks(conn, job.id))
        if jobs.lock(conn, job.id) is not JobState.RUNNING:
            raise ClaimLostError
        jobs.describe(conn, job.id, checks=checks)
        jobs.set_state(conn, job.id, JobState.SUCCEEDED)
        attempts.end(conn, member.token, AttemptOutcome.COMPLETED)

    with suppress(ClaimLostError):  # cancelled meanwhile
        ledger.transact(summarize)
