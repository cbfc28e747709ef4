"""Ranks: what one fails of reaches the child that started them, and none outlives it."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psutil
import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers.training import rank_programs
from workers.launching import launch

PROGRAM = """
import sys
from tests.unit.workers.training import rank_programs
from workers.launching import launch
if __name__ == "__main__":
    launch(2, "cpu", getattr(rank_programs, sys.argv[1]), *sys.argv[2:])
"""


def child(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A process that launches ranks, as a job's child does: its own group."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(program), *arguments], env=environment, start_new_session=True)


def runs(pid: int) -> bool:
    """Whether it is there and no zombie: who adopts orphans may be slow to reap them."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_error_of_any_rank_is_raised_with_its_code_and_traceback() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyholeError) as failed:
        launch(2, "cpu", rank_programs.fail, "1")
    assert failed.value.code is ErrorCode.OUT_OF_MEMORY
    assert failed.value.message == "this rank has no memory left"
    assert failed.value.hint == "Lower batch."
    told = "".join(traceback.format_exception(failed.value))
    assert "rank 1:" in told
    assert "rank_programs.py" in told
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_first_rank_that_needs_the_others_no_more_ends_them_without_an_error() -> None:
    launch(2, "cpu", rank_programs.be_done_with_the_others)


def test_a_killed_rank_takes_its_child_along_so_that_the_attempt_counts_as_crashed(tmp_path: Path) -> None:
    assert child(tmp_path, "be_killed").wait(250) == -signal.SIGKILL


def test_ranks_leave_when_their_child_is_killed(tmp_path: Path) -> None:
    process = child(tmp_path, "outlive_the_parent", str(tmp_path))
    assert process.wait(250) == -signal.SIGKILL
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(runs, pids))


def test_more_processes_than_gpus_of_the_slot_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(KeyholeError, match="processes is 2, one GPU each, and this worker gives a job 1") as refused:
        launch(2, "cuda", rank_programs.be_killed)
    assert "KEYHOLE_DEVICES=0+1" in refused.value.hint
