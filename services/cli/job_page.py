"""``keyhole job ID`` for reading: everything about one job, top down from what is asked first."""

from typing import Any

from services.cli import output
from services.contracts.jobs import JobDetail


def show(job: JobDetail) -> None:
    progress = job.progress
    output.fields(
        [
            ("job", job.id),
            ("kind", f"{job.kind}, version {job.version}"),
            ("label", job.label),
            ("run", job.run_id),
            ("state", str(job.state)),
            ("phase", None if job.state.terminal else progress.phase),
            ("queue position", progress.queue_position),
            ("progress", f"{progress.shards_done} of {progress.shards} shards, {progress.rows:,} rows"),
            ("rate", f"{progress.rows_per_s:,.0f} rows/s" if progress.rows_per_s else None),
            ("time left", output.duration(progress.remaining_s)),
            ("model", job.model),
            ("model identity", job.model_identity),
            ("dataset", job.dataset),
            ("dataset identity", job.dataset_identity),
            ("tokens", job.dataset_fingerprint),
            ("priority", job.priority),
            ("time limit", output.duration(job.time_limit_s)),
            ("submitted", output.when(job.created_at)),
            ("submitted by", job.submitted_by),
            ("started", output.when(job.started_at)),
            ("finished", output.when(job.finished_at)),
            ("duration", output.duration(job.duration_s)),
        ]
    )
    for title, values in (
        ("parameters", job.parameters),
        ("model architecture", job.model_architecture),
        ("environment", job.environment),
        ("checks", job.checks),
    ):
        if values:
            _section(title, values)
    if job.attempts:
        output.data("\nattempts")
        output.table(
            ("number", "worker", "device", "started", "ended", "outcome", "detail"),
            (
                (
                    attempt.number,
                    attempt.worker,
                    attempt.device,
                    output.when(attempt.started_at),
                    output.when(attempt.ended_at),
                    attempt.outcome or "live",
                    attempt.detail,
                )
                for attempt in job.attempts
            ),
        )
    if job.error:
        output.data("\nerror")
        output.fields([("code", str(job.error.code)), ("message", job.error.message), ("next", job.error.hint or None)])
        if job.error.traceback:
            output.data(f"\n{job.error.traceback.rstrip()}")


def _section(title: str, values: dict[str, Any]) -> None:
    output.data(f"\n{title}")
    output.fields((f"  {name}", value) for name, value in output.leaves(values))
