"""`keyhole up`, `status`, `down`: the embedded stack as a user starts it, killed in every way in between."""

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from services.local import ports, stack_file
from services.local.postgres import EmbeddedPostgres
from services.local.processes import still_running

NAMES = {"postgres", "valkey", "api", "reconciler", "worker", "dashboard"}


class Command:
    """The `keyhole` command with a home and ports of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.api_port, self.dashboard_port = ports.free_port(), ports.free_port()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
        self.environment |= {
            "KEYHOLE_HOME": str(home),
            "KEYHOLE_API_PORT": str(self.api_port),
            "KEYHOLE_DASHBOARD_PORT": str(self.dashboard_port),
            "KEYHOLE_DEVICES": "cpu",
        }

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "services.cli.app", *arguments]

    def run(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.line(*arguments), env=self.environment | environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def pids(self) -> dict[str, int | None]:
        return {row["name"]: row["pid"] for row in self.json("status")}


@pytest.fixture
def keyhole(service_folder: Path) -> Iterator[Command]:
    command = Command(service_folder / f"s{secrets.token_hex(3)}")
    yield command
    subprocess.run(command.line("down"), env=command.environment, capture_output=True, timeout=120, check=False)


def _processes_of(home: Path) -> list[psutil.Process]:
    """Whoever was told of this home, or works below it."""
    found = []
    for process in psutil.process_iter():
        try:
            told = process.environ().get("KEYHOLE_HOME") == str(home)
            if told or process.cwd().startswith(str(home)):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in still_running(found, 0) if process.pid != os.getpid()]


def test_up_serves_everything_and_down_leaves_no_process(keyhole: Command) -> None:
    report = keyhole.json("up", "--detach")
    assert set(report["started"]) == NAMES
    assert httpx.get(f"{report['api_url']}/v1/health/ready", trust_env=False).status_code == 200
    assert httpx.get(f"{report['dashboard_url']}/", trust_env=False).status_code == 200
    assert all(row["answers"] for row in keyhole.json("status"))
    findings = keyhole.json("doctor")
    assert [finding for finding in findings if finding["state"] == "fail"] == []

    path = keyhole.home / stack_file.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keyhole.json("jobs") == []

    before = keyhole.pids()
    again = keyhole.json("up", "--detach")
    assert again["started"] == []
    assert keyhole.pids() == before

    stopped = keyhole.json("down")["stopped"]
    assert set(stopped) == NAMES
    assert stopped[0] == "worker"
    assert stopped[-1] == "postgres"
    assert _processes_of(keyhole.home) == []
    assert not path.exists()
    assert keyhole.json("down") == {"stopped": []}
    assert {row["pid"] for row in keyhole.json("status", code=5)} == {None}


def test_up_restarts_only_what_was_killed(keyhole: Command) -> None:
    keyhole.run("up", "--detach")
    before = keyhole.pids()
    for name in ("api", "worker"):
        os.kill(before[name] or 0, signal.SIGKILL)
    keyhole.run("status", code=5)
    assert set(keyhole.json("up", "--detach")["started"]) == {"api", "worker"}
    after = keyhole.pids()
    assert {name for name in NAMES if before[name] != after[name]} == {"api", "worker"}


def test_after_kill_9_of_everything_up_recovers_with_the_same_token_and_data(keyhole: Command) -> None:
    keyhole.run("up", "--detach")
    token = json.loads((keyhole.home / stack_file.NAME).read_text())["token"]
    made = keyhole.json("token", "create", "kept")
    processes = _processes_of(keyhole.home)
    assert len(processes) >= len(NAMES)
    for process in processes:
        process.kill()
    assert still_running(processes, 20) == []
    assert set(keyhole.json("up", "--detach")["started"]) == NAMES
    assert json.loads((keyhole.home / stack_file.NAME).read_text())["token"] == token
    assert made["id"] in [row["id"] for row in keyhole.json("token", "list")]


def test_two_ups_at_once_start_one_stack(keyhole: Command) -> None:
    both = [
        subprocess.Popen(
            keyhole.line("up", "--detach", "--json"),
            env=keyhole.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    started = [json.loads(output)["started"] for output, _ in answers]
    assert sorted(len(names) for names in started) == [0, len(NAMES)]


def test_ctrl_c_on_a_foreground_up_stops_everything(keyhole: Command) -> None:
    process = subprocess.Popen(
        keyhole.line("up"), env=keyhole.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    line = ""
    while "Ctrl-C" not in line:
        line = process.stdout.readline()
        assert line, "up ended before it was up"
    killed = keyhole.pids()["dashboard"] or 0
    os.kill(killed, signal.SIGKILL)
    _wait_until_restarted(keyhole, killed)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert _processes_of(keyhole.home) == []


def _wait_until_restarted(keyhole: Command, killed: int) -> None:
    for _ in range(60):
        done = subprocess.run(keyhole.line("status", "--json"), env=keyhole.environment, capture_output=True, text=True)
        row = next(row for row in json.loads(done.stdout) if row["name"] == "dashboard")
        if row["answers"] and row["pid"] != killed:
            return
    raise AssertionError("the dashboard was not started again")


def test_a_service_that_cannot_start_shows_its_log_and_leaves_nothing_running(keyhole: Command) -> None:
    done = keyhole.run("up", "--detach", code=5, KEYHOLE_QUEUES="no-such-queue")
    assert "The worker ended right after its start" in done.stderr
    assert "no-such-queue" in done.stderr
    assert _processes_of(keyhole.home) == []
    assert not (keyhole.home / stack_file.NAME).exists()


def test_a_port_that_was_asked_for_and_is_taken_is_named(keyhole: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", keyhole.api_port))
        taken.listen()
        done = keyhole.run("up", "--detach", code=5)
    assert f"Port {keyhole.api_port}" in done.stderr
    assert EmbeddedPostgres(keyhole.home / "postgres").pid() is None


def test_up_beside_a_teams_database_is_refused(keyhole: Command) -> None:
    done = keyhole.run("up", "--detach", code=1, KEYHOLE_DATABASE_URL="postgresql://team@127.0.0.1/keyhole")
    assert "keyhole serve api" in done.stderr
    assert not keyhole.home.exists()


def test_down_spares_a_stranger_whose_process_has_a_recorded_pid(keyhole: Command) -> None:
    keyhole.run("up", "--detach")
    stack = stack_file.read(keyhole.home)
    assert stack is not None
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        stack.processes["dashboard"].child().stop(5)
        stack.processes["dashboard"].pid = stranger.pid
        stack_file.write(keyhole.home, stack)
        assert "dashboard" not in keyhole.json("down")["stopped"]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
