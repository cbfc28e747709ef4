"""Child processes that outlive the command that started them, known by pid and start time."""

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

# The kernel counts start times from boot, and the clock may be set in between; no pid comes round in two seconds.
CLOCK_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class ChildProcess:
    """A process that leads its own group. A recycled pid is told apart by its start time."""

    pid: int
    started_at: float

    def find(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started_at) < CLOCK_TOLERANCE_S:
                return None if process.status() == psutil.STATUS_ZOMBIE else process
        return None

    @property
    def alive(self) -> bool:
        return self.find() is not None

    def stop(self, grace_s: float) -> bool:
        """SIGTERM, after ``grace_s`` SIGKILL, and no descendant is left; True if it ended by itself in time."""
        process = self.find()
        if process is None:
            return True
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = process.children(recursive=True)  # psutil tells these too apart from recycled pids
            process.terminate()
        late = still_running([process], grace_s)
        left = still_running([*late, *descendants], 0)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        still_running(left, 10)
        return not late


def start(
    command: Sequence[str | Path], *, log: Path, cwd: Path, environment: Mapping[str, str] | None = None
) -> ChildProcess:
    """Start ``command``, output to ``log``, in a session of its own: Ctrl-C in our terminal does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    with log.open("wb") as output:
        os.fchmod(output.fileno(), 0o600)
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _STARTED.append(process)
    try:
        started_at = psutil.Process(process.pid).create_time()
    except psutil.NoSuchProcess:  # it ended at once; its log says why
        started_at = time.time()
    return ChildProcess(process.pid, started_at)


def still_running(watched: Sequence[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Those of ``watched`` that have not ended after ``limit_s``.

    A zombie has ended: in a container the init process may reap it seconds later, or never, and psutil's own wait
    would wait for that.
    """
    deadline = time.monotonic() + limit_s
    while True:
        watched = [process for process in watched if not _ended(process)]
        if not watched or time.monotonic() >= deadline:
            return list(watched)
        time.sleep(0.02)


def _ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


# Kept so that an ended child of a foreground `up` is reaped by Popen and not left as a zombie without an owner.
_STARTED: list[subprocess.Popen[bytes]] = []


def log_tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message."""
    if not log.exists():
        return "(no log was written)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or "(its log is empty)"
