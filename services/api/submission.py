"""From a submission to a job: resolve its sources, find one to reuse, else insert it, then tell the workers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import job_requests, jobs
from db.repositories.runs import NewRun
from services.api import enqueue, resolving, training_sources
from services.api.definitions import refuse_other_routing
from services.api.training_sources import Named
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import JobCreateFields
from services.contracts.kinds import KINDS, Kind
from services.contracts.parameters import JobParameters
from services.contracts.probes.common import ProbeParameters
from services.contracts.settings import Settings
from services.contracts.training.tokenizer_choice import require_tokenizer_fits
from services.contracts.training.training import TrainingParameters
from services.sources import ResolvedDataset, ResolvedModel

# names under which configurations of the supported architectures store the longest sequence they were made for
_LAYER_FIELDS = ("num_hidden_layers", "n_layer", "n_layers")
_HEAD_FIELDS = ("num_attention_heads", "n_head", "n_heads")
_MAX_LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")


@dataclass(frozen=True)
class Submitted:
    job_id: int
    reused: bool  # an earlier job answers this submission


async def submit(
    pool: ConnectionPool[Connection[Any]],
    turns: resolving.Turns,
    body: JobCreateFields,
    *,
    token_id: int,
    idempotency_key: str | None,
    settings: Settings,
) -> Submitted:
    """Make a job, or find the one that answers already.

    No connection is held while sources are resolved or the broker is told: hub and broker may be slow. The job and its
    shards are committed before any worker hears of them: a worker told earlier would find nothing, and a broker that
    is down cannot lose what the database holds.

    Raises: KeyholeError (invalid_source, model_…, dataset_…, idempotency_mismatch, unavailable).
    """
    request = None
    if idempotency_key is not None:  # answer a repetition before touching the sources: they may have moved since
        request = _Request(token_id, idempotency_key, _digest(body.model_dump(mode="json")))
        earlier = await run_in_threadpool(_repeated, pool, request)
        if earlier is not None:
            return Submitted(earlier, reused=True)
    sources = [body.model, *body.parameters.other_models()]
    models, dataset = await resolving.resolve(turns, sources, body.dataset, settings)
    named = await training_sources.resolve(turns, [body.parameters], settings)
    new = new_job(body, models, dataset, named, token_id=token_id, settings=settings)
    submitted = await run_in_threadpool(_store, pool, new, request, body.force)
    if not submitted.reused:
        await run_in_threadpool(enqueue.announce, settings, new.queue, submitted.job_id)
    return submitted


def new_job(
    body: JobCreateFields,
    models: Sequence[ResolvedModel],
    dataset: ResolvedDataset,
    named: Named,
    *,
    token_id: int | None,
    settings: Settings,
) -> jobs.NewJob:
    """The job that a submission asks for; ``models`` are its first and those its parameters name, in their order.

    Raises KeyholeError: invalid_request when the sequences are too long for a model, model_unsupported where its
    attention is not what the kind measures.
    """
    for each in models:
        refuse_too_long(each, body.parameters)
    refuse_misfit(models[0], body.parameters)
    kind = KINDS[body.kind]
    if kind.queue == "probe":
        for each in models:
            refuse_without_weights(each)
    refuse_other_routing(kind, models, body.parameters)
    model, *others = models
    asked, run = body.parameters, None
    if isinstance(asked, TrainingParameters):
        require_tokenizer_fits(asked.data.tokenizer, dataset.source, _vocabulary_size(model))
        asked, pinned = named.pinned(asked)
        run = _new_run(body, asked, pinned)
    parameters = asked.model_dump(mode="json")
    return jobs.NewJob(
        kind=kind.name,
        version=kind.version,
        queue=kind.queue,
        priority=body.priority,
        label=body.label or model.label,
        model_source=model.source,
        model_identity=model.identity,
        dataset_source=dataset.source,
        dataset_identity=dataset.identity,
        parameters=parameters,
        reuse_key=reuse_key(kind, parameters, [each.identity for each in models], dataset.identity, run),
        time_limit_s=body.time_limit_s,
        max_attempts=settings.life.max_attempts,
        submitted_by=token_id,
        shards=asked.shards(),
        other_models=[(each.source, each.identity) for each in others],
        pass_key=pass_key(kind, asked, model.identity, dataset.identity),
        pass_credit=getattr(asked, "credit", None) if kind.watches == "backward" else None,
        run=run,
    )


def _new_run(body: JobCreateFields, parameters: TrainingParameters, pinned: dict[str, str]) -> NewRun:
    name = body.label or f"{body.model.strip()} {parameters.variant} seed {parameters.seed}"
    return NewRun(name[:200], parameters.variant, parameters.seed, parameters.steps, pinned)


def _vocabulary_size(model: ResolvedModel) -> int | None:
    """None where the configuration does not tell it."""
    size = (model.config.get("text_config") or model.config).get("vocab_size")
    return size if type(size) is int else None


@dataclass(frozen=True)
class _Request:
    """What makes two requests the same one."""

    token_id: int
    key: str
    body_sha256: bytes


def _repeated(pool: ConnectionPool[Connection[Any]], request: _Request) -> int | None:
    with pool.connection() as conn:
        return _earlier(conn, request)


def _store(pool: ConnectionPool[Connection[Any]], new: jobs.NewJob, request: _Request | None, force: bool) -> Submitted:
    """Insert the job unless, under the locks of request and reuse key, there is one that answers."""
    with pool.connection() as conn, conn.transaction():
        if request is not None:
            job_requests.lock(conn, request.token_id, request.key)
            earlier = _earlier(conn, request)
            if earlier is not None:
                return Submitted(earlier, reused=True)
        jobs.lock_reuse_key(conn, new.reuse_key)
        found = None if force else jobs.reusable(conn, new.reuse_key)
        job_id = jobs.insert(conn, new) if found is None else found
        if request is not None:
            job_requests.insert(conn, request.token_id, request.key, request.body_sha256, job_id)
    return Submitted(job_id, reused=found is not None)


def reuse_key(
    kind: Kind, parameters: dict[str, Any], models: Sequence[str], dataset: str, run: NewRun | None = None
) -> str:
    """SHA-256 over all that determines a result: equal keys mean equal numbers. Models and data sets by identity."""
    pinned = [dict(run.pinned)] if run is not None and run.pinned else []
    return _digest([kind.name, kind.version, parameters, *models, dataset, *pinned]).hex()


def pass_key(kind: Kind, parameters: JobParameters, model: str, dataset: str) -> str | None:
    """SHA-256 over all that jobs must share to be measured in the same passes; None for kinds that run their own."""
    if kind.watches is None:
        return None
    assert isinstance(parameters, ProbeParameters), "only probes watch passes"
    shared = (parameters.sequences, parameters.length, parameters.batch, parameters.dtype)
    return _digest([model, dataset, *shared, parameters.shard_sequences()]).hex()


def refuse_too_long(model: ResolvedModel, parameters: JobParameters) -> None:
    """Raise KeyholeError (invalid_request) where the model's configuration names a shorter context than asked for."""
    config = model.config.get("text_config") or model.config
    limits = [config[name] for name in _MAX_LENGTH_FIELDS if type(config.get(name)) is int]
    if limits and parameters.tokens_per_sequence() > limits[0]:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"parameters.length is {parameters.tokens_per_sequence()}, but {model.source} has positions for "
            f"{limits[0]} tokens.",
            f"Set parameters.length to {limits[0]} or less.",
        )


def refuse_without_weights(model: ResolvedModel) -> None:
    """Raise KeyholeError (invalid_source) for a configuration: there is nothing to measure yet."""
    if model.source.startswith("config:"):
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"{model.source} has no weights to measure.",
            "Train it first (keyhole submit training), then name a checkpoint of the run: run:ID@last.",
        )


def refuse_misfit(model: ResolvedModel, parameters: JobParameters) -> None:
    """Raise KeyholeError (invalid_request) where the parameters name layers or heads that the model has not.

    A configuration that does not tell its shape lets them pass: the worker looks again.
    """
    config = model.config.get("text_config") or model.config
    layers, heads = (
        next((config[name] for name in names if type(config.get(name)) is int), None)
        for names in (_LAYER_FIELDS, _HEAD_FIELDS)
    )
    if layers is not None and heads is not None:
        parameters.require_fit(layers, heads)


def _earlier(conn: Connection[Any], request: _Request) -> int | None:
    stored = job_requests.get(conn, request.token_id, request.key)
    if stored is None:
        return None
    if stored.body_sha256 != request.body_sha256:
        raise KeyholeError(
            ErrorCode.IDEMPOTENCY_MISMATCH,
            f"The idempotency key {request.key!r} was used with another body; it made job {stored.job_id}.",
            "Send a new key with a new body.",
        )
    return stored.job_id


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).digest()
