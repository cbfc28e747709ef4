"""The parent of attempts: starts a child, renews the lease while it lives, and kills it when it must stop.

The child writes a beat every second into a pipe. Without beats the lease is not renewed, so that a stopped child
loses its shards like a dead one. The other pipe, whose far end only this process holds, gives it its orders, the
tokens of attempts; when the worker is gone it reads end-of-file and leaves, even after kill -9. A child that has
served an attempt may go on with another one of the same model.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import structlog

from db.repositories import attempts, events, riders
from db.repositories.attempts import OpenAttempt, Pulse
from services.contracts.errors import RULES, ErrorCode
from services.contracts.settings import LifeCycleSettings, Settings
from services.contracts.states import AttemptOutcome, JobState
from workers.devices import child_environment, torch_name
from workers.lifecycle import Ledger

log = structlog.get_logger()
_LOG_TAIL_BYTES = 8_000

shutting_down = threading.Event()  # set by the worker on SIGTERM: attempts are released, not finished


@dataclass(frozen=True)
class Ending:
    """How an attempt ended; with a code the job fails, else it goes on."""

    outcome: AttemptOutcome
    detail: str | None = None
    code: ErrorCode | None = None
    hint: str = ""
    traceback: str | None = None


class Child:
    """The child process, its two pipes and its log file, which bears the name of its first attempt."""

    def __init__(self, attempt: OpenAttempt, device: str, settings: Settings) -> None:
        self.log_path = _log_path(settings.home / "logs" / "jobs" / f"{attempt.job_id}-{attempt.number}.log")
        report_read, report_write = os.pipe()
        orders_read, self._orders_write = os.pipe()
        environment = child_environment(device) | {
            "PYTHONUNBUFFERED": "1",
            "TQDM_DISABLE": "1",  # progress bars of libraries would fill the log
        }
        with self.log_path.open("ab") as log_file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.execution", torch_name(device), str(report_write), str(orders_read)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                pass_fds=(report_write, orders_read),
                start_new_session=True,  # its own process group, so that data loaders and the like die with it
            )
        os.close(report_write)
        os.close(orders_read)
        self._report = os.fdopen(report_read, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._report, selectors.EVENT_READ)
        self._partial = b""
        self.last_beat: float | None = None
        self.error: dict[str, Any] | None = None
        self.reports_ended = False
        self.idle = True  # between two attempts
        self.begin(attempt)

    def begin(self, attempt: OpenAttempt) -> None:
        """Order the child, which is idle, to serve this attempt."""
        self.idle = False
        self._log_start = self.log_path.stat().st_size if self.log_path.is_file() else 0
        with contextlib.suppress(BrokenPipeError):  # it has died: that shows soon enough
            os.write(self._orders_write, f"{attempt.token}\n".encode())

    def listen(self, seconds: float) -> None:
        """Read what the child reports for at most so long."""
        if not self._selector.select(seconds):
            return
        chunk = self._report.read(65536)
        if not chunk:
            self.reports_ended = True
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.last_beat = time.monotonic()
            if message["type"] == "error":
                self.error = message
            elif message["type"] == "done":
                self.idle = True

    def kill(self, grace_s: float) -> None:
        """End the whole process group: SIGTERM, and SIGKILL after the grace."""
        for signal_number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 30.0)):
            if self.process.poll() is not None:
                break
            try:
                os.killpg(self.process.pid, signal_number)
                self.process.wait(wait_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # whoever of the group outlived the child

    def log_tail(self) -> str:
        """The last lines that it wrote in its current attempt."""
        return _tail(self.log_path, self._log_start)

    def close(self) -> None:
        self._selector.close()
        self._report.close()
        os.close(self._orders_write)


def supervise(
    attempt: OpenAttempt, device: str, settings: Settings, following: Callable[[int], OpenAttempt | None]
) -> None:
    """Run a child for the attempt, and for those that ``following(finished job)`` lets it go on with.

    Writes the end of each into the database.
    """
    child = Child(attempt, device, settings)
    try:
        current: OpenAttempt | None = attempt
        while current is not None:
            _supervise_one(child, current, device, settings)
            current = following(current.job_id) if child.idle and not shutting_down.is_set() else None
            if current is not None:
                child.begin(current)
    finally:
        child.kill(0.0)
        child.close()


def _supervise_one(child: Child, attempt: OpenAttempt, device: str, settings: Settings) -> None:
    life = settings.life
    assert settings.database_url is not None
    url, patience_s = settings.database_url.get_secret_value(), life.lease_s + life.database_grace_s
    ledger = Ledger(url, patience_s, attempts.connection_name(attempt.token))
    bound = log.bind(job=attempt.job_id, attempt=attempt.number, device=device)
    bound.info("attempt started", pid=child.process.pid)
    try:
        ending = _watch(child, attempt, ledger, life)
        if not child.idle:
            child.kill(life.stop_grace_s)
        _record(ledger, attempt, ending, child)
    finally:
        ledger.close()
    bound.info("attempt ended", outcome=str(ending.outcome), detail=ending.detail)


def _watch(child: Child, attempt: OpenAttempt, ledger: Ledger, life: LifeCycleSettings) -> Ending:
    """Follow the child until it ends or must be ended."""
    started = time.monotonic()
    renewed = started
    next_renewal = started
    while True:
        child.listen(min(0.25, life.heartbeat_s))
        if child.idle:
            return Ending(AttemptOutcome.COMPLETED)
        if child.process.poll() is not None:
            while not child.reports_ended:
                child.listen(1.0)
            return _child_ending(child)
        now = time.monotonic()
        if shutting_down.is_set():
            return Ending(AttemptOutcome.RELEASED, "the worker was shut down")
        if child.last_beat is None and now - started > life.start_timeout_s:
            return Ending(AttemptOutcome.CRASHED, f"the child showed no life within {life.start_timeout_s:g} s")
        if now - renewed > life.lease_s:
            return Ending(AttemptOutcome.LOST, f"the lease of {life.lease_s:g} s ran out without a renewal")
        beating = child.last_beat is None or now - child.last_beat < max(life.lease_s / 2, 2.0)
        if now < next_renewal or not beating:
            continue
        next_renewal = now + life.heartbeat_s
        try:
            pulses = ledger.transact(lambda conn: attempts.renew(conn, attempt.token, life.lease_s), patience_s=0.0)
        except psycopg.Error as error:
            log.warning("lease not renewed", job=attempt.job_id, error=str(error).strip())
            continue
        renewed = time.monotonic()
        _drop_riders(ledger, [pulse for pulse in pulses if pulse.token != attempt.token])
        pulse = next((pulse for pulse in pulses if pulse.token == attempt.token), None)
        if pulse is None:
            child.listen(1.0)  # it may have ended the attempt itself, and be about to say so
            if child.idle or child.process.poll() is not None:
                continue
            return Ending(AttemptOutcome.LOST, "the lease was taken away")
        if pulse.job_state is not JobState.RUNNING and pulse.job_state is not JobState.SUCCEEDED:
            return Ending(AttemptOutcome.CANCELLED, f"the job is {pulse.job_state}")
        if pulse.overdue:
            return Ending(AttemptOutcome.TIMED_OUT, pulse.overdue_message(), ErrorCode.TIME_LIMIT, pulse.overdue_hint())


def _drop_riders(ledger: Ledger, pulses: list[Pulse]) -> None:
    """End the riding of jobs that were cancelled, or ran too long."""
    try:
        for pulse in pulses:
            ledger.transact(lambda conn, of=pulse: riders.drop_unwanted(conn, of), patience_s=0.0)
    except psycopg.Error as error:
        log.warning("riders not dropped", error=str(error).strip())


def _child_ending(child: Child) -> Ending:
    """What the child's exit and its last report mean."""
    status = child.process.returncode
    if child.error is not None:
        code = ErrorCode(child.error["code"])
        fatal = not RULES[code].retried
        return Ending(
            AttemptOutcome.FAILED if fatal else AttemptOutcome.CRASHED,
            child.error["message"],
            code if fatal else None,
            child.error["hint"],
            child.error["traceback"],
        )
    if status == 0:
        return Ending(AttemptOutcome.COMPLETED)
    if status < 0:
        return Ending(AttemptOutcome.CRASHED, f"the child was killed by signal {-status}")
    return Ending(AttemptOutcome.CRASHED, f"the child left with status {status}")


def _record(ledger: Ledger, attempt: OpenAttempt, ending: Ending, child: Child) -> None:
    """Write the ending; whoever ended the attempt before us has written theirs, which stands."""

    def write(conn: psycopg.Connection) -> None:
        if ending.code is not None:
            recorded = attempts.fail(
                conn,
                attempt.token,
                ending.outcome,
                ending.code,
                ending.detail or "",
                ending.hint,
                ending.traceback,
            )
        else:
            recorded = attempts.end(conn, attempt.token, ending.outcome, ending.detail)
        if recorded and ending.outcome in (AttemptOutcome.FAILED, AttemptOutcome.CRASHED):
            tail = ending.traceback or child.log_tail()
            events.append(conn, attempt.job_id, "log", {"attempt": attempt.number, "tail": tail})

    try:
        ledger.transact(write)
        ledger.transact(lambda conn: riders.release(conn, attempt.token))
    except psycopg.Error as error:  # the reconciler will find the lease expired
        log.error("the attempt's end was not recorded", job=attempt.job_id, error=str(error).strip())


def _log_path(wanted: Path) -> Path:
    """Where the child's output goes: nowhere if the folder cannot be made, on a full disk say."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        wanted.touch()
    except OSError as error:
        log.warning("the child's output is not kept", path=str(wanted), error=str(error))
        return Path(os.devnull)
    return wanted


def _tail(path: Path, start: int) -> str:
    """The last lines of a file from ``start`` on, at most _LOG_TAIL_BYTES."""
    with path.open("rb") as file:
        if not file.seekable() or path == Path(os.devnull):
            return ""
        file.seek(0, os.SEEK_END)
        file.seek(max(start, file.tell() - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").replace("\x00", "")
