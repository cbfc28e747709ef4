"""/metrics for Prometheus, counted in the database at each scrape, so that every API process tells the same.

A scrape needs a token of scope read, like everything else: worker names and kinds are nobody else's business, and
Prometheus sends one with ``authorization: {credentials_file: …}``. No label is a job id, so their number is bounded.
"""

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from db.repositories import operations
from services.api.auth import Reader
from services.api.database import Database
from services.contracts.kinds import KINDS, QUEUES
from services.contracts.states import AttemptOutcome, JobState

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(caller: Reader, conn: Database) -> Response:
    """Jobs, queues, attempts and workers in the text format of Prometheus."""
    return Response(exposition(operations.figures(conn)), media_type=CONTENT_TYPE_LATEST)


def exposition(figures: operations.Figures) -> bytes:
    """The figures as text; what has not happened yet is 0, so that rates and alerts work from the start."""
    registry = CollectorRegistry(auto_describe=False)
    jobs = Gauge("keyhole_jobs", "Jobs by kind and state", ["kind", "state"], registry=registry)
    for kind in KINDS:
        for state in JobState:
            jobs.labels(kind, state).set(0)
    for kind, state, number in figures.jobs:
        jobs.labels(kind, state).set(number)
    oldest = Gauge("keyhole_oldest_queued_seconds", "Age of the oldest waiting job", ["queue"], registry=registry)
    for queue in QUEUES:
        oldest.labels(queue).set(0)
    for queue, age_s in figures.oldest_queued_s:
        oldest.labels(queue).set(age_s)
    attempts = Gauge("keyhole_attempts", "Attempts of existing jobs by outcome", ["outcome"], registry=registry)
    by_outcome = dict(figures.attempts)
    for outcome in ("live", *AttemptOutcome):
        attempts.labels(outcome).set(by_outcome.get(outcome, 0))
    Gauge("keyhole_lease_expiries", "Attempts of existing jobs that lost their lease", registry=registry).set(
        by_outcome.get(AttemptOutcome.LOST, 0)
    )
    Gauge("keyhole_rows", "Result rows of existing jobs", registry=registry).set(figures.rows)
    seen = Gauge("keyhole_worker_seen_age_seconds", "Since a worker last gave a sign", ["worker"], registry=registry)
    polled = Gauge("keyhole_worker_poll_age_seconds", "Since it last asked for work", ["worker"], registry=registry)
    memory = Gauge("keyhole_worker_gpu_memory_bytes", "GPU memory in use", ["worker"], registry=registry)
    for name, seen_age_s, poll_age_s, gpu_memory_bytes in figures.workers:
        seen.labels(name).set(seen_age_s)
        if poll_age_s is not None:
            polled.labels(name).set(poll_age_s)
        if gpu_memory_bytes is not None:
            memory.labels(name).set(gpu_memory_bytes)
    counted = {"duplicates_refused": 0, **dict(figures.counters)}
    for name, value in counted.items():
        Counter(f"keyhole_{name}", f"Total of {name.replace('_', ' ')}", registry=registry).inc(value)
    return generate_latest(registry)
