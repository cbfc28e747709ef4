"""Time in each phase out of a job's history."""

from datetime import UTC, datetime, timedelta

from dashboard.phases import phase_marks, phase_seconds
from dashboard.queries.jobs import Event

START = datetime(2026, 9, 4, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def lasted(end: float, *entries: tuple[float, str]) -> dict[str, float]:
    """Seconds by phase; an entry that names no state is a phase event."""
    states = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled")
    events = [
        Event(index, at(seconds), name if name in states else "phase", {} if name in states else {"phase": name})
        for index, (seconds, name) in enumerate(entries)
    ]
    return phase_seconds(phase_marks(START, events), at(end))


def test_phases_follow_one_another_and_the_last_lasts_until_now() -> None:
    found = lasted(100, (0, "queued"), (4, "running"), (9, "loading model"), (30, "reading data"), (32, "measuring"))
    assert found == {"queued": 4, "starting": 5, "loading model": 21, "reading data": 2, "measuring": 68}


def test_the_time_between_a_failure_and_its_retry_is_in_no_phase() -> None:
    first = [(0, "queued"), (4, "running"), (5, "loading model"), (15, "reading data"), (18, "failed")]
    again = [(500, "queued"), (503, "running"), (504, "loading model"), (514, "reading data"), (515, "measuring")]
    found = lasted(9_999, *first, *again, (540, "summarizing"), (542, "succeeded"))
    expected = {"queued": 4 + 3, "starting": 2, "loading model": 20, "reading data": 4, "measuring": 25}
    assert found == expected | {"summarizing": 2}


def test_a_lost_attempt_sends_the_job_back_to_the_queue() -> None:
    found = lasted(70, (0, "running"), (10, "measuring"), (40, "queued"), (60, "running"))
    assert found == {"queued": 20, "starting": 10 + 10, "measuring": 30}


def test_a_job_that_is_being_cancelled_no_longer_measures() -> None:
    found = lasted(1_000, (0, "running"), (10, "measuring"), (40, "cancelling"), (45, "cancelled"))
    assert found == {"queued": 0, "starting": 10, "measuring": 30, "cancelling": 5}
