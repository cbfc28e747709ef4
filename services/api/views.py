"""From database rows to what the API shows."""

from db.repositories.jobs import JobRow
from services.contracts.errors import ErrorCode
from services.contracts.jobs import AttemptView, JobDetail, JobError, JobProgress, JobView
from services.contracts.states import JobState


def job_view(row: JobRow, queue_position: int | None = None) -> JobView:
    """A job as a listing shows it: its error without the traceback, which only the detail carries."""
    return JobView(**_shared(row, queue_position), error=_error(row, with_traceback=False))


def job_detail(
    row: JobRow,
    attempts: list[AttemptView],
    queue_position: int | None = None,
    *,
    sweeps: list[int],
    reused: bool = False,
) -> JobDetail:
    return JobDetail(
        **_shared(row, queue_position),
        error=_error(row, with_traceback=True),
        model_identity=row.model_identity,
        dataset_identity=row.dataset_identity,
        dataset_fingerprint=row.dataset_fingerprint,
        model_architecture=row.model_architecture,
        environment=row.environment,
        checks=row.checks,
        attempts=attempts,
        sweeps=sweeps,
        reused=reused,
    )


def progress(row: JobRow, queue_position: int | None = None) -> JobProgress:
    """Shards and rows so far, and once some shard is done the rate, and while the job runs the time left.

    Both from the time that shards took, so that loading a model and waiting between attempts count for nothing.
    """
    side_by_side = max(1, row.live_attempts)
    rate = row.rows / row.measured_s * side_by_side if row.measured_s else None
    remaining = None
    if row.state == JobState.RUNNING and row.shards_done:
        remaining = row.measured_s / row.shards_done * (row.shards - row.shards_done) / side_by_side
    return JobProgress(
        phase=row.phase,
        shards=row.shards,
        shards_done=row.shards_done,
        rows=row.rows,
        rows_per_s=rate,
        remaining_s=remaining,
        queue_position=queue_position if row.state == JobState.QUEUED else None,
    )


def _shared(row: JobRow, queue_position: int | None) -> dict:
    return {
        "id": row.id,
        "kind": row.kind,
        "state": JobState(row.state),
        "label": row.label,
        "model": row.model_source,
        "dataset": row.dataset_source,
        "parameters": row.parameters,
        "priority": row.priority,
        "time_limit_s": row.time_limit_s,
        "version": row.version,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "duration_s": _duration_s(row),
        "progress": progress(row, queue_position),
        "submitted_by": row.submitted_by_name,
        "run_id": row.run_id,
    }


def _duration_s(row: JobRow) -> float | None:
    """Seconds since the start, until the end or by the database's clock until now."""
    if row.started_at is None:
        return None
    return max(0.0, ((row.finished_at or row.now) - row.started_at).total_seconds())


def _error(row: JobRow, *, with_traceback: bool) -> JobError | None:
    if row.error_code is None:
        return None
    return JobError(
        code=ErrorCode(row.error_code),
        message=row.error_message or "",
        hint=row.error_hint or "",
        traceback=row.error_traceback if with_traceback else None,
    )
