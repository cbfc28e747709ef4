"""Processes of the stack: known by pid and start time, stopped with all their descendants."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from services.local import processes
from services.local.processes import ChildProcess


def _python(code: str, tmp_path: Path) -> ChildProcess:
    return processes.start([sys.executable, "-c", code], log=tmp_path / "log", cwd=tmp_path)


def _log_has(tmp_path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.02)


def test_a_process_with_the_same_pid_and_another_start_time_is_never_killed(tmp_path: Path) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        started_at = psutil.Process(innocent.pid).create_time()
        recycled = ChildProcess(innocent.pid, started_at - 3600)
        assert not recycled.alive
        assert recycled.stop(grace_s=1)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_stop_lets_a_process_end_by_itself(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('gave back', flush=True), sys.exit()))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    child = _python(code, tmp_path)
    _log_has(tmp_path, "ready")
    assert child.stop(grace_s=20)
    assert "gave back" in (tmp_path / "log").read_text()
    assert not child.alive


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print('grandchild', grandchild.pid, flush=True); time.sleep(60)"
    )
    child = _python(code, tmp_path)
    _log_has(tmp_path, "\n")
    grandchild = psutil.Process(int((tmp_path / "log").read_text().split()[1]))
    assert not child.stop(grace_s=0.2)
    assert not child.alive
    assert processes.still_running([grandchild], 5) == []


def test_a_zombie_counts_as_ended() -> None:
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    child = ChildProcess(zombie.pid, psutil.Process(zombie.pid).create_time())
    deadline = time.monotonic() + 20
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not child.alive
    assert child.stop(grace_s=1)
    zombie.wait()


def test_ctrl_c_in_the_terminal_does_not_reach_a_started_process(tmp_path: Path) -> None:
    child = _python("import time; time.sleep(60)", tmp_path)
    try:
        process = child.find()
        assert process is not None
        assert process.terminal() is None
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        child.stop(1)


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    for text in ("first", "second"):
        child = _python(f"print({text!r})", tmp_path)
        _log_has(tmp_path, text)
        child.stop(5)
    assert (tmp_path / "log.previous.log").read_text() == "first\n"
    assert "second" in processes.log_tail(tmp_path / "log")


def test_log_tail_gives_the_last_lines_only(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(100)))
    assert processes.log_tail(tmp_path / "log", lines=2) == "line 98\nline 99"
    assert processes.log_tail(tmp_path / "absent") == "(no log was written)"
