"""Sweeps by HTTP, by the client and by the command: all members or none, one for one key, and what they found."""

import math
from typing import Any

import pytest
from typer.testing import CliRunner

from db.connection import connect
from db.repositories import jobs, sweep_stopping
from services.cli.app import app
from services.client import Keyhole, KeyholeError
from services.contracts.states import JobState, Scope
from tests.integration.api.background import train

RATE = "optimizer.learning_rate"
SHARED = {"steps": 4, "validation": {"every": 2}, "length": 16, "sequences_per_step": 2, "batch": 2}


def body(api, **changes: Any) -> dict[str, Any]:
    swept = {"axes": {RATE: [0.001, 0.003]}, "variants": ["control", "natq"], "seeds": [0, 1]}
    return {"model": "config:gpt-tiny", "dataset": api.dataset, "parameters": SHARED, **swept} | changes


def counted(api) -> tuple[int, ...]:
    with connect(api.database_url) as conn:
        tables = ("job", "suite", "sweep", "run", "shard")
        counts = [conn.execute(f"SELECT count(*) FROM keyhole.{table}").fetchone() for table in tables]
        return tuple(row[0] for row in counts if row)


def finish(api, sweep: dict[str, Any], loss: Any) -> None:
    """Let every member end with the loss that ``loss`` gives for variant, learning rate and seed."""
    with connect(api.database_url) as conn:
        for member in sweep["members"]:
            final = loss(member["variant"], member["setting"][RATE], member["seed"])
            train(conn, member["job_id"], [(0, 7.0), (2, final - 0.1), (4, final)])


def test_members_are_jobs_of_a_suite_in_the_order_of_seeds_settings_and_variants(api, admin):
    answer = admin.post("/v1/sweeps", json=body(api, name="rates", force=True))
    assert answer.status_code == 202, answer.text
    sweep = answer.json()
    assert answer.headers["Location"] == f"/v1/sweeps/{sweep['id']}"
    assert (sweep["runs"], sweep["jobs_by_state"], sweep["best"], sweep["noise"]) == (8, {"queued": 8}, [], None)
    seen = [(member["seed"], member["setting"][RATE], member["variant"]) for member in sweep["members"]]
    assert seen == [(s, r, v) for s in (0, 1) for r in (0.001, 0.003) for v in ("control", "natq")]
    suite = admin.get(f"/v1/suites/{sweep['suite_id']}").json()
    assert [job["id"] for job in suite["members"]] == [member["job_id"] for member in sweep["members"]]
    assert suite["sweep_id"] == sweep["id"]
    job = suite["members"][3]
    assert job["label"] == "rates · natq, learning_rate 0.003, seed 0"
    assert (job["parameters"]["optimizer"]["learning_rate"], job["parameters"]["variants"][0]["name"]) == (
        0.003,
        "natq",
    )
    assert admin.get(f"/v1/sweeps/{sweep['id']}").json() == sweep
    assert admin.get("/v1/sweeps", params={"q": "RATES"}).json()["items"][0]["id"] == sweep["id"]


def test_a_repeated_key_makes_no_second_sweep_and_another_body_is_refused(api, admin):
    key = {"Idempotency-Key": "a sweep"}
    first = admin.post("/v1/sweeps", json=body(api, force=True), headers=key).json()
    before = counted(api)
    again = admin.post("/v1/sweeps", json=body(api, force=True), headers=key)
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    other = admin.post("/v1/sweeps", json=body(api, force=True, seeds=[5]), headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert str(first["id"]) in other.json()["detail"]
    assert counted(api) == before


def test_the_same_sweep_without_a_key_is_answered_by_the_same_jobs(api, admin):
    first = admin.post("/v1/sweeps", json=body(api, seeds=[11])).json()
    second = admin.post("/v1/sweeps", json=body(api, seeds=[11])).json()
    assert second["id"] != first["id"]
    assert [member["run_id"] for member in second["members"]] == [member["run_id"] for member in first["members"]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"axes": {"optimizer.learning_rat": [1, 2]}}, "learning_rat"),
        ({"axes": {RATE: [0.001, -1.0]}}, "greater than 0"),
        ({"axes": {"length": [16, 4000]}}, "positions for 256"),
        ({"axes": {"seed": [1]}}, "give seeds"),
        ({"variants": ["natc"]}, "natc"),
        ({"parameters": {**SHARED, "optimizer": {"learning_rate": 0.5}, "steps": 0}}, "steps"),
        ({"model": "config:gpt-tinny"}, "gpt-tiny"),
        ({"dataset": "file:/nowhere.txt"}, "nowhere"),
        ({"early_stopping": {"after_steps": [3], "worse_by_nats": 1.0}}, "no validation"),
        ({"early_stopping": {"after_steps": [4], "worse_by_nats": 1.0}}, "or ends"),
        ({"axes": {"batch": [2, 2.0]}}, "batch"),
        ({"axes": {"clip": [1, 1.0]}}, "same training"),
        ({"stages": [{"models": ["runs@newest"], "probes": [{"kind": "attention_profile"}]}]}, "names no runs"),
        ({"seeds": list(range(90)), "axes": {"clip": [1.0, 2.0, 3.0], "batch": [1, 2]}}, "1080 members"),
    ],
)
def test_what_is_wrong_with_one_member_refuses_all(api, admin, changes, told):
    before = counted(api)
    answer = admin.post("/v1/sweeps", json=body(api, **changes))
    assert answer.status_code == 422, answer.text
    assert told in answer.text
    assert counted(api) == before


def test_the_result_has_each_variant_s_best_seed_noise_and_a_verdict(api, admin):
    sweep = admin.post("/v1/sweeps", json=body(api, force=True, seeds=[0, 1, 2])).json()
    worse = {("control", 0.001): 0.1, ("control", 0.003): 0.0, ("natq", 0.001): 0.05, ("natq", 0.003): 0.2}
    finish(api, sweep, lambda variant, rate, seed: 3.0 + worse[variant, rate] + 0.01 * (seed - 1))
    found = admin.get(f"/v1/sweeps/{sweep['id']}").json()
    assert {each["variant"]: each["setting"][RATE] for each in found["best"]} == {"control": 0.003, "natq": 0.001}
    # every setting has losses m − 0.01, m, m + 0.01: a sample variance of 0.0001 each, with 2 degrees of freedom
    assert found["noise"]["degrees_of_freedom"] == 8
    assert found["noise"]["sd_nats"] == pytest.approx(0.01, rel=1e-9)
    (difference,) = found["differences"]
    assert (difference["first"], difference["second"], difference["verdict"]) == ("control", "natq", "differs")
    assert difference["difference_nats"] == pytest.approx(0.05, abs=1e-9)
    assert difference["standard_error_nats"] == pytest.approx(0.01 * math.sqrt(2 / 3), rel=1e-9)
    assert difference["least_nats"] == pytest.approx(2.306004135 * 0.01 * math.sqrt(2 / 3), rel=1e-8)  # t of 8, tables
    leads = {each["variant"]: each for each in found["leads"]}
    assert {name: (lead["next_setting"][RATE], lead["verdict"]) for name, lead in leads.items()} == {
        "control": (0.001, "differs"),
        "natq": (0.003, "differs"),
    }
    assert leads["control"]["lead_nats"] == pytest.approx(0.1, abs=1e-9)
    member = found["members"][0]
    assert (member["final_validation_loss_nats"], member["best_step"]) == (pytest.approx(3.09), 2)
    assert member["best_validation_loss_nats"] == pytest.approx(2.99)


def test_a_member_that_failed_has_no_final_loss_and_its_setting_is_not_the_best(api, admin):
    sweep = admin.post("/v1/sweeps", json=body(api, force=True, variants=["control"])).json()
    finish(api, sweep, lambda variant, rate, seed: 3.0 + (rate == 0.001))
    last = next(member for member in sweep["members"] if member["setting"][RATE] == 0.003)
    with connect(api.database_url) as conn, conn.transaction():
        conn.execute("UPDATE keyhole.job SET state = 'running' WHERE id = %s", (last["job_id"],))
        jobs.set_state(conn, last["job_id"], JobState.FAILED)
    found = admin.get(f"/v1/sweeps/{sweep['id']}").json()
    assert found["best"][0]["setting"] == {RATE: 0.001}
    assert next(m for m in found["members"] if m["job_id"] == last["job_id"])["final_validation_loss_nats"] is None


def test_a_deleted_member_stays_and_its_setting_is_told_to_lack_a_seed(api, admin, command):
    sweep = admin.post("/v1/sweeps", json=body(api, force=True)).json()
    finish(api, sweep, lambda variant, rate, seed: 3.0 + seed / 100 - (rate == 0.003))
    gone = next(
        member for member in sweep["members"] if (member["variant"], member["setting"][RATE]) == ("natq", 0.003)
    )
    before = admin.get(f"/v1/sweeps/{sweep['id']}").json()
    assert (before["deleted"], before["lacking"]) == (0, None)
    assert admin.get(f"/v1/jobs/{gone['job_id']}").json()["sweeps"] == [sweep["id"]]
    told = command("delete", gone["job_id"], "--yes")
    assert told.exit_code == 0, told.output
    assert f"It was a member of sweep {sweep['id']}" in told.output
    found = admin.get(f"/v1/sweeps/{sweep['id']}").json()
    assert (found["runs"], found["deleted"], found["jobs_by_state"]) == (8, 1, {"succeeded": 7})
    left = found["members"][gone["number"]]
    assert (left["state"], left["seed"], left["job_id"], left["run_id"]) == ("deleted", gone["seed"], None, None)
    setting = next(each for each in found["settings"] if (each["variant"], each["setting"][RATE]) == ("natq", 0.003))
    assert (setting["seeds"], len(setting["losses_nats"])) == (2, 1)
    assert "natq, learning_rate 0.003 (1 of 2)" in found["lacking"]
    shown = command("sweep-result", sweep["id"]).output
    assert "7 succeeded, 1 deleted" in shown
    assert "1/2" in shown
    assert "natq, learning_rate 0.003 (1 of 2)" in " ".join(shown.split())


def test_an_unknown_sweep_is_no_error_of_ours_and_readers_only_look(api, admin):
    assert admin.get("/v1/sweeps/999999").status_code == 404
    with api.client(Scope.READ) as reader:
        assert reader.get("/v1/sweeps").status_code == 200
        assert reader.post("/v1/sweeps", json=body(api)).status_code == 403


def test_the_sweep_of_a_preset_takes_changes_of_what_its_members_share(api, admin):
    (preset,) = (each for each in admin.get("/v1/presets").json() if each["name"] == "laboratory/figure-6-small")
    changes = {"steps": 8, "validation": {"every": 4}, "length": 16, "queries": {"start": 8}, "sequences": 1}
    answer = admin.post(
        "/v1/suites", json={"preset": preset["name"], "dataset": api.dataset, "parameters": changes, "force": True}
    )
    assert answer.status_code == 202, answer.text
    suite = answer.json()
    sweep = admin.get(f"/v1/sweeps/{suite['sweep_id']}").json()
    assert sweep["runs"] == len(suite["members"])
    assert sweep["axes"] == preset["sweep"]["axes"]
    assert {
        (member["steps"], job["parameters"]["validation"]["every"])
        for member, job in zip(sweep["members"], suite["members"], strict=True)
    } == {(8, 4)}
    assert [stage["state"] for stage in suite["stages"]] == ["waiting"] * len(preset["stages"])


def test_the_client_submits_and_shows_members_and_settings_as_tables(api):
    with Keyhole(api.url, api.tokens[Scope.ADMIN]) as keyhole:
        sweep = keyhole.sweep(
            model="config:gpt-tiny",
            dataset=api.dataset,
            axes={RATE: {"low": 1e-4, "high": 1e-2}},
            variants=["control", {"name": "natq", "damping": 0.5}],
            seeds=[0, 1],
            random=2,
            label="from Python",
            **SHARED,
        )
        frame = sweep.members()
        assert list(frame["variant"].unique()) == ["control", "natq"]
        assert frame[RATE].nunique() == 2
        finish(
            api,
            sweep.detail.model_dump(mode="json"),
            lambda variant, rate, seed: 3.0 + (variant == "natq") + 0.01 * seed,
        )
        assert sweep.wait(progress=False).detail.differences[0].verdict == "differs"
        assert len(sweep.settings()) == 4
        assert [each.id for each in keyhole.sweeps(text="from python")] == [sweep.id]
        assert keyhole.sweep_result(sweep.id).detail == sweep.detail
        with pytest.raises(KeyholeError, match="no sweep 999999"):
            keyhole.sweep_result(999999)


@pytest.fixture
def command(api, monkeypatch):
    monkeypatch.setenv("KEYHOLE_API_URL", api.url)
    monkeypatch.setenv("KEYHOLE_TOKEN", api.tokens[Scope.ADMIN])
    from services.contracts.settings import settings

    settings.cache_clear()
    yield lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])
    settings.cache_clear()


def test_the_command_submits_lists_and_shows_a_sweep(api, command):
    shared = ["--set", "steps=4", "--set", "validation.every=2", "--set", "length=16"]
    made = command(
        *("sweep", "--model", "config:gpt-tiny", "--dataset", api.dataset, "--axis", f"{RATE}=1e-3,3e-3"),
        *("--variant", "control", "--variant", "natq", "--seed", "0,1", "--label", "by command", "--force"),
        *("--stop-after", "2", "--worse-by", "5", *shared),
    )
    assert made.exit_code == 0, made.output
    assert "by command: 8 queued" in made.output
    sweep_id = int(made.output.split("Sweep ")[1].split(",")[0])
    assert "by command" in command("sweeps").output
    with Keyhole(api.url, api.tokens[Scope.ADMIN]) as keyhole:
        detail = keyhole.sweep_result(sweep_id).detail
    assert detail.early_stopping == {"after_steps": [2], "worse_by_nats": 5.0, "keep_fraction": None}
    finish(api, detail.model_dump(mode="json"), lambda variant, rate, seed: 3.0 + 0.01 * seed + rate)
    shown = command("sweep-result", sweep_id, "--wait")
    assert shown.exit_code == 0, shown.output
    # equal means of the variants; settings 0.002 apart, where seeds are 0.01 apart
    assert "control and natq end at the same loss to 0.0001 nats ± 0.0071: their means are equal." in shown.output
    assert shown.output.count("least, by 0.0020: within noise") == 2
    assert "best" not in shown.output
    assert "learning_rate 0.003" in command("sweep-result", sweep_id, "--members").output


def test_the_command_says_what_is_wrong_with_an_axis(api, command):
    shared = ["--model", "config:gpt-tiny", "--dataset", api.dataset]
    assert "name=value" in command("sweep", *shared, "--axis", "batch").output
    assert "given twice" in command("sweep", *shared, "--axis", "batch=1", "--axis", "batch=2").output
    assert "whole numbers" in command("sweep", *shared, "--seed", "0,x").output
    assert "--stop-after" in command("sweep", *shared, "--worse-by", "0.1").output


def test_the_views_of_analysts_have_the_final_and_the_best_loss(api, admin):
    sweep = admin.post("/v1/sweeps", json=body(api, force=True, variants=["control"])).json()
    finish(api, sweep, lambda variant, rate, seed: 3.0 + rate)
    query = (
        "SELECT sweep.name, seed, setting ->> 'optimizer.learning_rate' AS rate, final_validation_loss_nats, "
        "best_validation_loss_nats FROM sweep_member JOIN sweep ON sweep.id = sweep_id "
        f"WHERE sweep_id = {sweep['id']} ORDER BY number"
    )
    rows = admin.post("/v1/sql", json={"sql": query}).json()["rows"]
    assert rows[1] == [f"sweep of {RATE}", 0, "0.003", pytest.approx(3.003), pytest.approx(2.903)]


def test_members_given_up_are_told_apart_from_cancelled_ones(api, admin):
    sweep = admin.post("/v1/sweeps", json=body(api, force=True, variants=["control"])).json()
    job_id = sweep["members"][0]["job_id"]
    with connect(api.database_url) as conn, conn.transaction():
        jobs.lock(conn, job_id)
        assert sweep_stopping.mark(conn, sweep["id"], job_id, "worse than the best")
        jobs.request_cancel(conn, job_id)
    suite = admin.get(f"/v1/suites/{sweep['suite_id']}").json()
    assert suite["members"][0]["stopped"] == "worse than the best"
    assert admin.get(f"/v1/sweeps/{sweep['id']}").json()["members"][0]["stopped"] == "worse than the best"
    admin.post(f"/v1/jobs/{job_id}/retry")
    assert admin.get(f"/v1/sweeps/{sweep['id']}").json()["members"][0]["stopped"] is None
