"""The progress bar on a terminal."""

import io
import threading
import time
from datetime import UTC, datetime

import pytest

from services.client import progress
from services.contracts.jobs import JobDetail


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def job() -> JobDetail:
    absent = "label started_at finished_at duration_s error submitted_by dataset_fingerprint model_architecture"
    nothing = dict.fromkeys([*absent.split(), "environment", "checks"])
    return JobDetail.model_validate(
        nothing
        | {"id": 7, "kind": "gradient_scale", "state": "running", "model": "m", "dataset": "d", "parameters": {}}
        | {"priority": 0, "time_limit_s": 60, "version": 1, "created_at": datetime.now(UTC), "attempts": []}
        | {"model_identity": "m", "dataset_identity": "d"}
        | {"progress": {"phase": "measuring", "shards": 4, "shards_done": 1, "rows": 10}}
    )


def test_the_clock_of_the_bar_goes_on_without_events_and_stops_with_it(job, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    with progress.Bar(job):
        deadline = time.monotonic() + 20
        while terminal.getvalue().count("job 7") < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert terminal.getvalue().count("job 7") >= 5
    assert "progress bar" not in {thread.name for thread in threading.enumerate()}


def test_without_a_terminal_there_is_no_bar_and_no_clock(job, monkeypatch):
    plain = io.StringIO()
    monkeypatch.setattr("sys.stderr", plain)
    with progress.Bar(job):
        assert "progress bar" not in {thread.name for thread in threading.enumerate()}
    assert plain.getvalue() == ""
