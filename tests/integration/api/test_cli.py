"""The command `keyhole` as a process against a served API."""

import csv
import io
import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from db.repositories import events
from services.contracts.states import Scope
from tests.integration.api import stand_in_worker

KEYHOLE = str(Path(sys.executable).with_name("keyhole"))


@pytest.fixture
def environment(api, tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
    told = {"KEYHOLE_API_URL": api.url, "KEYHOLE_TOKEN": api.tokens[Scope.ADMIN], "KEYHOLE_HOME": str(tmp_path)}
    return kept | told


@pytest.fixture
def keyhole(environment):
    def run(*arguments: str, expect: int = 0, **options) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [KEYHOLE, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False, **options
        )
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def submitted(api, keyhole, *more: str) -> dict:
    command = ("submit", "gradient_scale", "--model", api.model, "--dataset", api.dataset, "--force", "--json")
    return json.loads(keyhole(*command, "--set", "sequences=2", "--set", "length=64", *more).stdout)


def test_submit_passes_nested_parameters_and_options(api, keyhole):
    job = submitted(
        api, keyhole, "--set", "queries.step=8", "--set", "credit=own_token", "--priority", "7", "--label", "mine"
    )
    assert job["parameters"]["queries"] == {"start": 32, "stop": None, "step": 8}
    assert (job["parameters"]["credit"], job["priority"], job["label"]) == ("own_token", 7, "mine")


def test_waiting_ends_with_the_job_and_its_exit_code(api, keyhole, environment):
    waiting, job_id = begin_waiting(api, environment)
    stand_in_worker.carry_out(api.database_url, job_id)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "16 of 16 shards, 384 rows" in err.splitlines()[-2]  # lines and no bar: stderr is no terminal
    assert "\r" not in err
    assert "succeeded: 384 rows" in out


def test_a_failed_job_ends_with_code_3_and_tells_the_error(api, keyhole, environment):
    waiting, job_id = begin_waiting(api, environment)
    stand_in_worker.fail(api.database_url, job_id)
    out, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 3
    assert "ran out of memory" in out
    page = keyhole("job", str(job_id)).stdout
    assert "MemoryError" in page
    assert "Lower length or batch." in page


def test_ctrl_c_stops_the_waiting_and_not_the_job(api, keyhole, environment):
    waiting, job_id = begin_waiting(api, environment)
    time.sleep(1)  # into the stream
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert f"keyhole cancel {job_id}" in err
    assert json.loads(keyhole("job", str(job_id), "--json").stdout)["state"] == "queued"


def test_a_cancelled_job_ends_the_waiting_with_code_4(api, keyhole, environment):
    waiting, job_id = begin_waiting(api, environment)
    keyhole("cancel", str(job_id))
    waiting.communicate(timeout=60)
    assert waiting.returncode == 4


def begin_waiting(api, environment) -> tuple[subprocess.Popen, int]:
    """A process that submits a job and waits for it, and the job's id once the API has it."""
    label = secrets.token_hex(8)
    command = [KEYHOLE, "submit", "gradient_scale", "--model", api.model, "--dataset", api.dataset, "--force", "--wait"]
    command += ["--set", "length=64", "--label", label]
    waiting = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # who runs the tests in the background has SIGINT ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with api.client() as client:
        while waiting.poll() is None:
            if found := client.get("/v1/jobs", params={"label": label}).json()["items"]:
                return waiting, found[0]["id"]
            time.sleep(0.05)
    raise AssertionError(waiting.communicate()[1])


def test_jobs_are_listed_filtered_retried_and_deleted(api, keyhole):
    job = submitted(api, keyhole, "--label", "listed here")
    job_id = str(job["id"])
    listing = keyhole("jobs", "--search", "listed here").stdout
    assert listing.splitlines()[0].split()[:3] == ["ID", "KIND", "STATE"]
    assert listing.splitlines()[1].split()[:3] == [job_id, "gradient_scale", "queued"]
    keyhole("cancel", job_id)
    assert keyhole("jobs", "--search", "listed here", "--state", "queued").stdout.count("\n") == 1
    assert "queued" in keyhole("retry", job_id).stdout
    keyhole("cancel", job_id)
    keyhole("delete", job_id, "--yes")
    assert "no job" in keyhole("job", job_id, expect=1).stderr


def test_logs_tell_the_history_line_by_line(api, keyhole):
    job = submitted(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job["id"])
    types = [
        json.loads(line)["type"] for line in keyhole("logs", str(job["id"]), "--follow", "--json").stdout.splitlines()
    ]
    assert types == ["queued", "running", "phase", "progress", "progress", "succeeded"]
    assert "shards_done=2" in keyhole("logs", str(job["id"])).stdout


def test_logs_show_the_end_of_the_log_of_an_attempt_below_its_line(api, keyhole):
    job = submitted(api, keyhole)
    tail = "Loading weights\nRuntimeError: a\x1b[31m red\u202e word"
    with psycopg.connect(api.database_url) as conn:
        events.append(conn, job["id"], "log", {"attempt": 2, "tail": tail})
    told = keyhole("logs", str(job["id"])).stdout.splitlines()
    assert told[-3].endswith("log of attempt 2")
    assert told[-2:] == ["Loading weights", r"RuntimeError: a\x1b[31m red\u202e word"]
    last = json.loads(keyhole("logs", str(job["id"]), "--json").stdout.splitlines()[-1])
    assert (last["type"], last["data"]["tail"]) == ("log", tail)


def test_checks_and_environment_are_told_line_by_line(api, keyhole):
    job = submitted(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job["id"])
    told = [line.split() for line in keyhole("job", str(job["id"])).stdout.splitlines()]
    assert ["parity.logits", "1e-06"] in told
    assert ["device", "cpu"] in told
    assert ["queries.start", "32"] in told


def test_sql_that_is_no_unicode_is_a_message(keyhole):
    told = keyhole("sql", b"SELECT 1 \xff".decode("utf-8", "surrogateescape"), expect=1)
    assert "cannot be sent" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_number_that_json_has_not_is_a_message(api, keyhole):
    command = ("submit", "gradient_scale", "--model", api.model, "--dataset", api.dataset, "--set", "length=NaN")
    assert "parameters.length is nan; it must be a finite number" in keyhole(*command, expect=1).stderr


def test_a_file_that_cannot_be_written_is_a_message(keyhole):
    told = keyhole("sql", "SELECT 1", "--format", "csv", "--output", "/proc/no/such.csv", expect=1)
    assert "/proc/no/such.csv" in told.stderr
    assert "Traceback" not in told.stderr


def test_rows_are_spelled_out_on_a_terminal_and_whole_in_a_pipe(keyhole, environment):
    query = "SELECT E'\\x1b[31m' AS red"
    for format_, piped, shown in (
        ("csv", "\x1b[31m", r"\x1b[31m"),
        ("json", r"\u001b[31m", r"\u001b[31m"),
        ("table", r"\x1b[31m", r"\x1b[31m"),
    ):
        assert piped in keyhole("sql", query, "--format", format_).stdout
        on_terminal = _on_a_terminal([KEYHOLE, "sql", query, "--format", format_], environment)
        assert shown in on_terminal
        assert "\x1b[31m" not in on_terminal


def _on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """What the command writes when its standard output is a terminal."""
    own, theirs = pty.openpty()
    done = subprocess.run(command, env=environment, stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    assert done.returncode == 0
    told = b""
    while True:
        try:
            piece = os.read(own, 4096)
        except OSError:  # Linux: the other end is closed and all is read
            break
        if not piece:
            break
        told += piece
    os.close(own)
    return told.decode()


def test_sql_is_written_in_every_format(keyhole, tmp_path):
    query = "SELECT n, 'NaN'::float8 AS x, ARRAY[n, n] AS list FROM generate_series(1, 3) AS n"
    assert keyhole("sql", query).stdout.splitlines()[0].split() == ["N", "X", "LIST"]
    rows = list(csv.DictReader(io.StringIO(keyhole("sql", query, "--format", "csv").stdout)))
    assert rows[1] == {"n": "2", "x": "NaN", "list": "[2, 2]"}
    answer = json.loads(keyhole("sql", "-", "--json", input=query).stdout)
    assert answer["rows"] == [[1, "NaN", [1, 1]], [2, "NaN", [2, 2]], [3, "NaN", [3, 3]]]
    keyhole("sql", query, "--format", "parquet", "--output", str(tmp_path / "answer.parquet"))
    assert pq.read_table(tmp_path / "answer.parquet")["n"].to_pylist() == [1, 2, 3]
    cut = keyhole("sql", query, "--limit", "1", "--format", "csv")
    assert len(cut.stdout.splitlines()) == 2
    assert "row limit" in cut.stderr


def test_a_refused_statement_is_one_message_and_code_1(keyhole):
    told = keyhole("sql", "SELECT 1/0", expect=1)
    assert "division by zero" in told.stderr
    assert told.stdout == ""
    error = json.loads(keyhole("sql", "SELECT 1/0", "--json", expect=1).stderr)["error"]
    assert error["code"] == "sql_refused"


def test_export_writes_files_and_says_which(api, keyhole, tmp_path):
    job = submitted(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job["id"])
    told = json.loads(keyhole("export", str(job["id"]), "--to", str(tmp_path / "out"), "--json").stdout)
    assert pq.read_metadata(tmp_path / "out" / "gradient_scale.parquet").num_rows == told["files"][0]["rows"] == 48


def test_tokens_are_made_listed_and_revoked(keyhole, environment):
    token = keyhole("token", "create", "ci", "--scope", "read").stdout.strip()
    assert token.startswith("kh_")
    mine = next(each for each in json.loads(keyhole("token", "list", "--json").stdout) if each["name"] == "ci")
    environment["KEYHOLE_TOKEN"] = token
    assert "scope admin" in keyhole("token", "list", expect=1).stderr
    environment.pop("KEYHOLE_TOKEN")
    assert "no token" in keyhole("kinds", expect=1).stderr
    assert mine["prefix"] == token[: len(mine["prefix"])]


def test_kinds_show_how_to_set_their_parameters(keyhole):
    told = keyhole("kinds").stdout
    assert "--set queries.step=4" in told
    assert '--set credit="sequence"' in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit",),
        ("submit", "gradient_scale", "--model", "x", "--dataset", "y", "--set", "novalue"),
        ("jobs", "--state", "sleeping"),
        ("job", "zero"),
        ("unknown",),
    ],
)
def test_a_wrong_command_line_is_code_2(keyhole, arguments):
    told = keyhole(*arguments, expect=2)
    assert told.stdout == ""
    assert told.stderr


def test_an_api_that_does_not_answer_is_code_5(keyhole, environment):
    environment["KEYHOLE_API_URL"] = "http://127.0.0.1:9"
    assert "keyhole up" in keyhole("jobs", expect=5).stderr


def test_a_misspelt_parameter_is_told_with_the_one_meant(api, keyhole):
    told = keyhole(
        "submit", "gradient_scale", "--model", api.model, "--dataset", api.dataset, "--set", "lenth=64", expect=1
    )
    assert "Did you mean length?" in told.stderr
