"""Submits the later stages of suites once the jobs before them have ended: a follower.

A stage is prepared without a transaction, since sources may be slow, and then stored in one that holds its row locked
and finds it still waiting: whatever stops in between submits nothing, and whoever comes second finds it submitted.
"""

import time
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi.exceptions import RequestValidationError
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import api_tokens, jobs, suite_stages
from db.repositories.suite_stages import DueStage, EarlierJob
from services.api import enqueue, stage_jobs, suite_runs
from services.api.follower import Follower, Surroundings
from services.api.suite_plan import PlannedStage
from services.api.suites import add_jobs, without_repetitions
from services.api.validation_errors import described
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import JobState

Pool = ConnectionPool[Connection[Any]]
_NOBODY_TO_SUBMIT_FOR = (
    "the token that submitted the suite has expired or was revoked, and nothing is submitted in its name; "
    "submit the suite again with a token of your own: what has been computed is taken as it is"
)
_MOST_TOLD = 3  # jobs named in the reason for skipping a stage
_WAIT_S = (2.0, 60.0)  # after a first failure that may pass, doubled up to the second
_log = structlog.get_logger("keyhole.following")


class _Patience:
    """When to try a stage again whose submission met what may pass; a new leader starts anew."""

    def __init__(self) -> None:
        self._waits: dict[tuple[int, int], tuple[float, float]] = {}

    def over(self, due: DueStage) -> bool:
        return time.monotonic() >= self._waits.get((due.suite_id, due.number), (0.0, 0.0))[0]

    def longer(self, due: DueStage) -> None:
        first, most = _WAIT_S
        _, last = self._waits.get((due.suite_id, due.number), (0.0, first / 2))
        wait = min(2 * last, most)
        self._waits[due.suite_id, due.number] = time.monotonic() + wait, wait

    def forget(self, due: DueStage) -> None:
        self._waits.pop((due.suite_id, due.number), None)


_patience = _Patience()


async def look(surroundings: Surroundings) -> None:
    """Submit or skip every stage whose turn has come."""
    for due in await surroundings.in_thread(_due, surroundings.pool):
        if not _patience.over(due):
            continue
        try:
            await _settle(surroundings, due)
        except Exception as error:  # one suite's trouble is not the others'
            await surroundings.in_thread(_met, surroundings.pool, due, error)
        else:
            _patience.forget(due)


async def _settle(surroundings: Surroundings, due: DueStage) -> None:
    found = await surroundings.in_thread(_expanded, surroundings.pool, due)
    if isinstance(found, str):
        await surroundings.in_thread(_skip, surroundings.pool, due, found)
        return
    news = await stage_jobs.jobs_of(
        surroundings.turns, due.name, found, token_id=due.submitted_by, settings=surroundings.settings
    )
    fresh = await surroundings.in_thread(_store, surroundings.pool, due, news, found.force)
    for queue, job_id in fresh:
        await surroundings.in_thread(enqueue.announce, surroundings.settings, queue, job_id)


def _due(pool: Pool) -> list[DueStage]:
    with pool.connection() as conn:
        return suite_stages.due(conn)


def _expanded(pool: Pool, due: DueStage) -> PlannedStage | str:
    """The stage with the checkpoints it is to measure, or why it is skipped."""
    stage = PlannedStage.model_validate(due.body)
    with pool.connection() as conn:
        earlier = suite_stages.earlier_jobs(conn, due.suite_id)
        skipped = [row.number for row in suite_stages.of_suite(conn, due.suite_id) if row.state == "skipped"]
        reason = why_not(stage, due.number, earlier, skipped)
        if reason is None and not api_tokens.may_submit(conn, due.submitted_by):
            reason = _NOBODY_TO_SUBMIT_FOR
        return reason or suite_runs.expanded(conn, due.suite_id, stage)


def why_not(stage: PlannedStage, number: int, earlier: Sequence[EarlierJob], skipped: Sequence[int]) -> str | None:
    """Why a stage cannot go on after what became of the jobs before it; None if it can.

    A member of a sweep that was given up early is no failure: that is what it was asked for.
    """
    if stage.on_failure == "continue":
        if any(job.state == JobState.SUCCEEDED for job in earlier):
            return None
        return "no job before it succeeded"
    if number - 1 in skipped:
        return f"stage {number - 1} was skipped; retrying a job before it lets it wait again"
    bad = [
        f"job {job.job_id} ({job.kind}) {'failed' if job.state == JobState.FAILED else 'was cancelled'}"
        for job in earlier
        if job.stage == number - 1 and job.state != JobState.SUCCEEDED and not job.stopped
    ]
    if not bad:
        return None
    more = f" and {len(bad) - _MOST_TOLD} more" if len(bad) > _MOST_TOLD else ""
    return f"{', '.join(bad[:_MOST_TOLD])}{more}; retrying such a job lets the stage wait again"


def _store(pool: Pool, due: DueStage, news: Sequence[jobs.NewJob], force: bool) -> list[tuple[str, int]]:
    """Insert the stage's jobs if it still waits and its turn is still there; what is new is to be announced."""
    with pool.connection() as conn, conn.transaction():
        if not suite_stages.lock_due(conn, due.suite_id, due.number):
            return []
        _, fresh = add_jobs(conn, due.suite_id, due.number, without_repetitions(news), force=force)
        suite_stages.set_submitted(conn, due.suite_id, due.number)
    return fresh


def _skip(pool: Pool, due: DueStage, reason: str) -> None:
    with pool.connection() as conn:
        suite_stages.skip(conn, due.suite_id, due.number, reason)


def _met(pool: Pool, due: DueStage, error: Exception) -> None:
    """Skip a stage that can never be submitted; tell what keeps one that may be submitted later."""
    if isinstance(error, RequestValidationError):
        first = described(error.errors())[0]
        _skip(pool, due, f"{first['where']}: {first['message']}. {first['hint']}".rstrip())
        return
    if isinstance(error, KeyholeError) and error.code is not ErrorCode.UNAVAILABLE:
        _skip(pool, due, str(error))
        return
    _patience.longer(due)
    told = str(error) if isinstance(error, KeyholeError) else f"{type(error).__name__}: {error}"
    if not isinstance(error, KeyholeError):
        _log.warning("stage_not_submitted", suite=due.suite_id, stage=due.number, error=told, exc_info=error)
    with pool.connection() as conn:
        suite_stages.keep_waiting(conn, due.suite_id, due.number, told)


FOLLOWER = Follower("stages of suites", look)
