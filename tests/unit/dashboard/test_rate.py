"""Shards per second out of a job's history."""

from datetime import UTC, datetime, timedelta

import pytest

from dashboard.queries.jobs import Event
from dashboard.views.job_detail import shard_rate

START = datetime(2026, 9, 4, tzinfo=UTC)


def history(*entries: tuple[float, str, int | None]) -> list[Event]:
    """Events as the page reads them, the last first."""
    return [
        Event(index, START + timedelta(seconds=at), kind, {} if done is None else {"shards_done": done})
        for index, (at, kind, done) in reversed(list(enumerate(entries)))
    ]


def test_the_rate_is_shards_over_the_time_since_the_oldest_of_the_latest() -> None:
    events = history((0, "attempt", None), (10, "progress", 1), (14, "progress", 2), (18, "progress", 3))
    assert shard_rate(events, START + timedelta(seconds=20)) == pytest.approx(2 / 10)


def test_a_new_attempt_starts_a_new_rate() -> None:
    events = history((10, "progress", 1), (12, "progress", 2), (500, "attempt", None), (520, "progress", 3))
    assert shard_rate(events, START + timedelta(seconds=521)) is None


def test_a_stalled_job_gets_slower_instead_of_keeping_its_last_rate() -> None:
    events = history((10, "progress", 1), (11, "progress", 2))
    rates = [shard_rate(events, START + timedelta(seconds=now)) for now in (12, 60, 600)]
    assert rates == sorted(rates, reverse=True)
