"""Training runs by HTTP, by the client and by the command: listed, filtered, and their numbers written."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from db.connection import connect
from db.repositories import jobs, runs
from db.repositories.runs import Metric
from services.cli.app import app
from services.client import Keyhole, KeyholeError
from services.contracts.settings import settings
from services.contracts.states import JobState, Scope
from tests.integration.new_runs import stored_checkpoint, trained_run


@pytest.fixture(scope="module")
def run_ids(api) -> list[int]:
    """Control and NATQ with checkpoints, and one that is running."""
    with connect(api.database_url) as conn, conn.transaction():
        entropies = [Metric(500, "entropy_nats", 2.5, layer, head) for layer in (None, 0) for head in (None, 1)][:3]
        control = trained_run(conn, name="first of all", metrics=entropies)
        natq = trained_run(conn, name="second", losses=[(0, 7.0), (250, 3.0), (500, 3.25)], variants=["natq"], seed=1)
        running = trained_run(conn, name="third", losses=[(0, 7.0)], state=JobState.RUNNING)
        for step in (0, 500):
            stored_checkpoint(conn, control, step, reasons=["first"] if step == 0 else ["best", "last"])
    return [control, natq, running]


def test_a_submission_of_a_training_makes_a_run(api, admin):
    body = {"kind": "training", "model": "config:gpt-tiny", "dataset": api.dataset}
    job = admin.post("/v1/jobs", json=body | {"parameters": {"steps": 250, "variants": ["natq"], "seed": 3}}).json()
    assert job["progress"]["shards"] == 3, "segments of 100 steps"
    run = admin.get(f"/v1/runs/{job['run_id']}").json()
    assert (run["job_id"], run["state"], run["steps"], run["steps_done"]) == (job["id"], "queued", 250, 0)
    assert (run["variant"], run["seed"], run["model"]) == ("natq", 3, "config:gpt-tiny")
    assert run["parameters"] == job["parameters"]
    assert run["checkpoints"] == [] and run["metrics"] == []


def test_runs_are_listed_newest_first_and_filtered(api, admin, run_ids):
    def listed(**filters: object) -> list[int]:
        items = admin.get("/v1/runs", params=filters).json()["items"]
        return [item["id"] for item in items if item["id"] in run_ids]

    assert listed() == sorted(run_ids, reverse=True)
    assert listed(variant="natq") == [run_ids[1]]
    assert listed(variant=["natq", "control"], state="succeeded") == [run_ids[1], run_ids[0]]
    assert listed(q="THIRD") == [run_ids[2]]
    assert listed(seed=1) == [run_ids[1]]
    assert admin.get("/v1/runs", params={"state": "asleep"}).status_code == 422


def test_pages_of_runs_lead_through_all_of_them(api, run_ids):
    keyhole = Keyhole(api.url, api.tokens[Scope.READ])
    every = [each.id for each in keyhole.runs()]
    first = keyhole._connection.request("GET", "/v1/runs", params={"limit": 2}).json()
    second = keyhole._connection.request("GET", "/v1/runs", params={"limit": 2, "cursor": first["next"]}).json()
    assert [item["id"] for item in first["items"] + second["items"]] == every[:4]
    assert [each.id for each in keyhole.runs(limit=1)] == every[:1]


def test_a_run_tells_its_last_and_its_best_loss_and_its_checkpoints(api, admin, run_ids):
    run = admin.get(f"/v1/runs/{run_ids[1]}").json()
    assert (run["last_validation_step"], run["last_validation_loss_nats"]) == (500, 3.25)
    assert (run["best_validation_step"], run["best_validation_loss_nats"]) == (250, 3.0)
    assert run["last_validation_bits_per_byte"] == 3.25 / 2
    control = admin.get(f"/v1/runs/{run_ids[0]}").json()
    assert [(each["step"], each["reasons"]) for each in control["checkpoints"]] == [
        (0, ["first"]),
        (500, ["best", "last"]),
    ]
    assert control["metrics"] == ["entropy_nats", "validation_bits_per_byte", "validation_loss_nats"]


def test_numbers_by_step_come_as_frames_and_files(api, run_ids):
    run = Keyhole(api.url, api.tokens[Scope.READ]).run(run_ids[0])
    assert run.curve().to_dict() == {0: 7.0, 250: 4.0, 500: 3.5}
    rows = run.metrics("entropy_nats")
    assert rows[["layer", "head"]].isna().to_numpy().tolist() == [[True, True], [True, False], [False, True]]
    with run.metrics_file("csv", ["validation_loss_nats"]) as body:
        written = list(csv.DictReader(io.StringIO(body.read().decode())))
    assert [(row["step"], row["value"]) for row in written] == [("0", "7"), ("250", "4"), ("500", "3.5")]
    assert run.matrices().empty
    assert run.source() == f"run:{run.id}@last"


def test_a_run_that_is_not_there_is_told_so(api, admin):
    for path in ("/v1/runs/999999", "/v1/runs/999999/metrics", "/v1/runs/999999/matrices"):
        answer = admin.get(path)
        assert answer.status_code == 404
        assert answer.json()["hint"] == "List runs with: keyhole runs"
    with pytest.raises(KeyholeError, match="There is no run 999999"):
        Keyhole(api.url, api.tokens[Scope.READ]).run(999_999)


def test_the_command_shows_runs_and_writes_their_numbers(api, run_ids, monkeypatch, tmp_path, request):
    monkeypatch.setenv("KEYHOLE_API_URL", api.url)
    monkeypatch.setenv("KEYHOLE_TOKEN", api.tokens[Scope.READ])
    settings.cache_clear()
    request.addfinalizer(settings.cache_clear)

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "second" in said("runs", "--variant", "natq")
    page = said("run", str(run_ids[0]))
    assert "3.5000 nats at step 500" in page and f"run:{run_ids[0]}@500" in page
    file = tmp_path / "numbers.csv"
    said("run", str(run_ids[0]), "--csv", str(file), "--metric", "entropy_nats")
    assert len(file.read_text().splitlines()) == 1 + 3


def told(api, *words: str) -> subprocess.Popen:
    environment = {"KEYHOLE_API_URL": api.url, "KEYHOLE_TOKEN": api.tokens[Scope.READ], "PATH": "/usr/bin"}
    command = [str(Path(sys.executable).with_name("keyhole")), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("ending", "code", "options"),
    [(JobState.SUCCEEDED, 0, []), (JobState.FAILED, 3, ["--json"]), (JobState.CANCELLED, 4, ["--csv", "-"])],
)
def test_a_run_that_was_waited_for_is_shown_as_it_has_become_with_the_code_of_its_job(api, ending, code, options):
    with connect(api.database_url) as conn:
        with conn.transaction():
            run_id = trained_run(conn, name=f"to be {ending}", losses=[(0, 7.0)], state=JobState.RUNNING)
        waiting = told(api, "run", str(run_id), "--wait", *options)
        assert waiting.stderr is not None
        assert "waiting for it" in waiting.stderr.readline()
        job_id = api_run(api, run_id)["job_id"]
        with conn.transaction():
            runs.write(conn, run_id, [Metric(250, "validation_loss_nats", 2.125)])
            jobs.set_state(conn, job_id, ending)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == code, err
    if options == ["--json"]:
        shown = json.loads(out)
        assert (shown["id"], shown["state"], shown["last_validation_loss_nats"]) == (run_id, str(ending), 2.125)
    elif options:
        assert [row["value"] for row in csv.DictReader(io.StringIO(out)) if row["step"] == "250"] == ["2.125"]
    else:
        assert "2.1250 nats at step 250" in out and "succeeded" in out


def api_run(api, run_id: int) -> dict:
    with api.client() as client:
        return client.get(f"/v1/runs/{run_id}").json()


def test_numbers_that_cannot_be_shown_by_step_are_told_in_the_order_asked(api):
    with connect(api.database_url) as conn, conn.transaction():
        metrics = [Metric(0, "natq_iterations", 3.0, 0)]
        run_id = trained_run(conn, name="by layer", losses=[(0, 7.0)], metrics=metrics)
    asked = ["--metric", "zeal", "--metric", "natq_iterations", "--metric", "other_loss_nats"]
    out, err = told(api, "run", str(run_id), *asked).communicate(timeout=60)
    assert "STEP" not in out
    first, second, third = err.splitlines()
    assert first.startswith(f"Run {run_id} has no 'zeal'; it has natq_iterations")
    assert second == f"natq_iterations of run {run_id} is known only by layer or head; --csv FILE writes it."
    assert third.startswith(f"Run {run_id} has no 'other_loss_nats'")
