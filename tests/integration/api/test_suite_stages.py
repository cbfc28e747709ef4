"""Later stages of suites: submitted once, when the jobs before have ended, on the suite's own runs."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from fastapi.exceptions import RequestValidationError

from db.repositories import api_tokens, jobs, suite_stages
from services.api import resolving
from services.api import suite_stages as following_stages
from services.api.follower import Surroundings
from services.client import Keyhole
from services.contracts.errors import KeyholeError
from services.contracts.settings import LifeCycleSettings, Settings
from services.contracts.states import JobState, Scope
from tests.integration.api.background import Background, background, members, train
from tests.integration.api.conftest import served

TRAINED = {"steps": 4, "validation": {"every": 2}, "length": 16, "sequences_per_step": 2, "batch": 2}
SMALL = {"sequences": 2, "length": 16, "queries": {"start": 8}}


@pytest.fixture
def suites(database, tmp_path) -> Iterator[Background]:
    with background(database, tmp_path) as made:
        yield made


def trainings(*seeds: int) -> list[dict[str, Any]]:
    return [{"kind": "training", "parameters": {**TRAINED, "seed": seed}} for seed in seeds]


def profile(models: list[str], **fields: Any) -> dict[str, Any]:
    return {"models": models, "probes": [{"kind": "attention_profile", "parameters": SMALL}], **fields}


def look(suites: Background) -> None:
    suites.run(following_stages.look)


def stage(conn: psycopg.Connection, suite_id: int, number: int = 1) -> suite_stages.StageRow:
    return suite_stages.of_suite(conn, suite_id)[number - 1]


def test_a_stage_waits_for_all_jobs_before_it_and_takes_the_ends_of_their_runs_in_order(suites, conn):
    suite_id = suites.suite(probes=trainings(0, 1), stages=[profile(["runs@last"])])
    first, second = members(conn, suite_id)
    second_run = train(conn, second.id)
    look(suites)
    assert stage(conn, suite_id).state == "waiting"
    first_run = train(conn, first.id, [(0, 7.0), (2, 4.0)])
    look(suites)
    later = members(conn, suite_id, stage=1)
    assert [job.label for job in later] == [f"training · run:{first_run}@2", f"training · run:{second_run}@4"]
    assert [job.kind for job in later] == ["attention_profile"] * 2
    assert {job.submitted_by for job in later} == {suites.token_id}
    assert stage(conn, suite_id).state == "submitted"


def test_training_jobs_of_one_suite_have_names_that_tell_them_apart(suites, conn):
    suite_id = suites.suite(probes=trainings(0, 1), name="three seeds")
    assert [job.label for job in members(conn, suite_id)] == [
        "three seeds · control, seed 0",
        "three seeds · control, seed 1",
    ]
    names = conn.execute("SELECT name FROM keyhole.run ORDER BY id").fetchall()
    assert names == [("three seeds · control, seed 0",), ("three seeds · control, seed 1",)]


def test_pattern_stability_of_all_checkpoints_is_one_job_that_knows_their_runs_and_steps(suites, conn):
    stability = {"kind": "pattern_stability", "parameters": {**SMALL, "sequences": 1}}
    suite_id = suites.suite(probes=trainings(0, 1), stages=[{"models": ["runs"], "probes": [stability]}])
    run_ids = [train(conn, job.id, [(0, 7.0), (2, 4.0), (4, 3.5)]) for job in members(conn, suite_id)]
    look(suites)
    (job,) = members(conn, suite_id, stage=1)
    parameters = job.parameters
    seen = [(parameters["run"], parameters["step"])] + [(e["run"], e["step"]) for e in parameters["checkpoints"]]
    assert seen == [(f"run {run_id}", step) for run_id in run_ids for step in (0, 2, 4)]


def test_probes_may_have_data_sets_of_their_own(suites, conn, tmp_path):
    other = tmp_path / "data" / "other.txt"
    other.write_text("Something else altogether. " * 50)
    probes = [{"kind": "attention_profile", "parameters": SMALL, "dataset": f"file:{other}"}]
    suite_id = suites.suite(probes=trainings(0), stages=[{"models": ["runs@best"], "probes": probes}])
    (training,) = members(conn, suite_id)
    train(conn, training.id)
    look(suites)
    (job,) = members(conn, suite_id, stage=1)
    assert (training.dataset_source, job.dataset_source) == (suites.dataset, f"file:{other}")


@pytest.mark.parametrize(("state", "told"), [(JobState.FAILED, "failed"), (JobState.CANCELLED, "was cancelled")])
def test_a_stage_is_skipped_with_the_reason_and_waits_again_when_the_job_is_retried(suites, conn, state, told):
    stages = [profile(["runs@last"]), profile(["runs@first"])]
    suite_id = suites.suite(probes=trainings(0, 1), stages=stages)
    first, second = members(conn, suite_id)
    train(conn, first.id)
    train(conn, second.id, state=state)
    look(suites)
    look(suites)
    assert [stage(conn, suite_id, number).state for number in (1, 2)] == ["skipped", "skipped"]
    assert f"job {second.id} (training) {told}" in (stage(conn, suite_id).detail or "")
    assert stage(conn, suite_id, 2).detail == "stage 1 was skipped; retrying a job before it lets it wait again"
    with conn.transaction():
        jobs.retry(conn, second.id)
        suite_stages.wait_again(conn, second.id)
    look(suites)
    assert [stage(conn, suite_id, number).state for number in (1, 2)] == ["waiting", "waiting"]
    conn.execute("UPDATE keyhole.job SET state = 'succeeded' WHERE id = %s", (second.id,))
    look(suites)
    assert len(members(conn, suite_id, stage=1)) == 2


def test_a_stage_that_continues_goes_on_with_the_runs_that_succeeded(suites, conn):
    suite_id = suites.suite(probes=trainings(0, 1), stages=[profile(["runs@last"], on_failure="continue")])
    first, second = members(conn, suite_id)
    train(conn, first.id, state=JobState.FAILED)
    run_id = train(conn, second.id)
    look(suites)
    (job,) = members(conn, suite_id, stage=1)
    query = "SELECT run_id FROM keyhole.checkpoint WHERE 'checkpoint:' || id = %s"
    assert conn.execute(query, (job.model_source,)).fetchone() == (run_id,)


def test_a_stage_that_continues_is_skipped_if_nothing_succeeded(suites, conn):
    suite_id = suites.suite(probes=trainings(0), stages=[profile(["runs@last"], on_failure="continue")])
    train(conn, members(conn, suite_id)[0].id, state=JobState.FAILED)
    look(suites)
    assert (stage(conn, suite_id).state, stage(conn, suite_id).detail) == ("skipped", "no job before it succeeded")


@pytest.mark.parametrize("change", ["revoked_at = now()", "expires_at = now()"])
def test_nothing_is_submitted_later_in_the_name_of_a_token_that_is_not_usable_any_more(suites, conn, change):
    suite_id = suites.suite(probes=trainings(0), stages=[profile(["runs@last"]), profile(["runs@first"])])
    (training,) = members(conn, suite_id)
    train(conn, training.id)
    conn.execute(f"UPDATE keyhole.api_token SET {change} WHERE id = %s", (suites.token_id,))
    look(suites)
    look(suites)
    assert [stage(conn, suite_id, number).state for number in (1, 2)] == ["skipped", "skipped"]
    assert "has expired or was revoked" in (stage(conn, suite_id).detail or "")
    assert members(conn, suite_id, stage=1) == []


def test_a_checkpoint_that_a_run_has_not_skips_the_stage_with_those_it_has(suites, conn):
    suite_id = suites.suite(probes=trainings(0), stages=[profile(["runs@3"])])
    train(conn, members(conn, suite_id)[0].id)
    look(suites)
    found = stage(conn, suite_id)
    assert found.state == "skipped"
    assert "no checkpoint at 3" in (found.detail or "") and "steps 0, 4" in (found.detail or "")


def test_several_that_look_at_once_submit_a_stage_once(suites, conn):
    suite_id = suites.suite(probes=trainings(0, 1), stages=[profile(["runs"])])
    for job in members(conn, suite_id):
        train(conn, job.id)

    async def at_once(around: Surroundings) -> None:
        await asyncio.gather(*(following_stages.look(around) for _ in range(6)))

    suites.run(at_once)
    assert len(members(conn, suite_id, stage=1)) == 4
    assert conn.execute("SELECT count(*) FROM keyhole.job WHERE kind = 'attention_profile'").fetchone() == (4,)


def test_a_crash_between_insert_and_commit_submits_nothing_and_the_next_look_all(suites, conn, monkeypatch):
    suite_id = suites.suite(probes=trainings(0), stages=[profile(["runs@last"])])
    train(conn, members(conn, suite_id)[0].id)

    def dies(conn: psycopg.Connection, suite_id: int, number: int) -> None:
        raise ConnectionResetError("the process is gone")

    with monkeypatch.context() as patched:
        patched.setattr(suite_stages, "set_submitted", dies)
        look(suites)
    found = stage(conn, suite_id)
    assert (found.state, members(conn, suite_id, stage=1)) == ("waiting", [])
    assert "the process is gone" in (found.detail or "")
    monkeypatch.setattr(following_stages, "_patience", following_stages._Patience())  # as a new process has it
    look(suites)
    assert (stage(conn, suite_id).state, len(members(conn, suite_id, stage=1))) == ("submitted", 1)
    assert stage(conn, suite_id).detail is None


def test_what_may_pass_keeps_a_stage_waiting_and_tells_what(suites, conn, monkeypatch):
    monkeypatch.setattr(resolving, "WAIT_S", 0.05)
    suite_id = suites.suite(probes=trainings(0), stages=[profile(["runs@last"])])
    train(conn, members(conn, suite_id)[0].id)

    async def busy(around: Surroundings) -> None:
        turns = resolving.Turns(files=asyncio.Semaphore(0), pool=around.pool)
        await following_stages.look(Surroundings(around.pool, turns, around.settings))

    suites.run(busy)
    found = stage(conn, suite_id)
    assert found.state == "waiting"
    assert "busy resolving" in (found.detail or "")


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([{"models": ["run@last"], "probes": [{"kind": "attention_profile"}]}], "names no runs of the suite"),
        ([profile(["runs@latest"])], "names no runs of the suite"),
        ([profile(["best-runs@last"])], "the suite is no sweep"),
        ([profile(["runs@last"], dataset="file:/nowhere/text.txt")], "/nowhere/text.txt"),
        ([profile(["path:/nowhere"])], "/nowhere"),
        ([{"models": ["runs"], "probes": [{"kind": "attention_profil"}]}], "attention_profil"),
    ],
)
def test_what_is_wrong_with_a_later_stage_refuses_the_suite_at_once(suites, conn, stages, told):
    with pytest.raises(KeyholeError) as refused:
        suites.suite(probes=trainings(0), stages=stages)
    assert told in str(refused.value)
    assert conn.execute("SELECT count(*) FROM keyhole.job").fetchone() == (0,)


def test_a_misspelt_parameter_of_a_later_stage_refuses_the_suite_at_once(suites):
    probes = [{"kind": "attention_profile", "parameters": {"lenth": 3}}]
    with pytest.raises(RequestValidationError) as refused:
        suites.suite(probes=trainings(0), stages=[{"models": ["runs"], "probes": probes}])
    assert refused.value.errors()[0]["loc"][-1] == "lenth"


def test_runs_need_a_stage_that_trains(suites):
    with pytest.raises(KeyholeError, match="no stage before it trains"):
        suites.suite(
            models=["config:gpt-tiny"],
            probes=[{"kind": "attention_profile", "parameters": SMALL}],
            stages=[profile(["runs@last"])],
        )


def test_the_api_submits_stages_by_itself_and_shows_them(database, suites, conn, tmp_path):
    life = LifeCycleSettings(follow_s=0.05)
    settings = Settings(home=tmp_path, database_url=database.owner_url, life=life)  # type: ignore[arg-type]
    _, token = api_tokens.create(conn, "admin", Scope.ADMIN)
    with served(settings) as url, Keyhole(url, token) as keyhole:
        suite = keyhole.submit_suite(
            model="config:gpt-tiny", dataset=suites.dataset, probes=trainings(0), stages=[profile(["runs@last"])]
        )
        assert (suite.detail.ended, suite.detail.stages[0].state) == (False, "waiting")
        assert [each.stages_waiting for each in keyhole.suites()] == [1]
        train(conn, suite.detail.members[0].id)
        deadline = time.monotonic() + 60
        while suite.refresh().detail.stages_waiting and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [(job.kind, job.stage) for job in suite.detail.members] == [("training", 0), ("attention_profile", 1)]
        assert suite.detail.stages[0].kinds == ["attention_profile"]
        other = keyhole.submit_suite(
            model="config:gpt-tiny", dataset=suites.dataset, probes=trainings(1), stages=[profile(["runs@last"])]
        )
        other.cancel()
        assert (other.detail.stages[0].state, other.detail.stages[0].detail) == ("skipped", "the suite was cancelled")
        assert other.detail.ended
        keyhole.job(other.detail.members[0].id).retry()
        assert other.refresh().detail.stages[0].state == "waiting"
