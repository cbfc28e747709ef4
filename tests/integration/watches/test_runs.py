"""Watches of runs: new checkpoints get their probes once, and what comes back raises alerts."""

import threading

import pytest
from psycopg.types.json import Jsonb
from structlog.testing import capture_logs

from db.repositories import jobs, runs
from db.repositories.runs import Metric
from services.api.watching import judge_all, look_at_runs
from services.contracts.states import JobState
from services.contracts.training.numbers import Matrix
from tests.integration.new_jobs import submission
from tests.integration.new_runs import trained_run
from tests.integration.watches.conftest import SMALL, fail, finish, run_looks, store_checkpoint

PROBE = {"kind": "attention_profile", "parameters": SMALL}
LOW = "entropy_nats head below 0.5"


@pytest.fixture
def run_id(watched):
    return trained_run(watched.conn, state=JobState.RUNNING, dataset=watched.dataset, losses=[(0, 7.0)], steps=1000)


def entropies(*by_head: float) -> dict:
    return {"entropy_nats": {(0, head): value for head, value in enumerate(by_head)}}


def end(watched, run_id: int, state: JobState = JobState.SUCCEEDED) -> None:
    (job_id,) = watched.conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
    jobs.set_state(watched.conn, job_id, state)


def judged_jobs(watched, watch_id: int) -> list[dict]:
    """The one job of each checkpoint, by step."""
    seen = sorted(watched.watch(watch_id)["newest"], key=lambda each: each["step"])
    return [watched.jobs_of(each["suite_id"])[0] for each in seen]


def test_each_checkpoint_gets_its_probes_and_a_collapse_raises_an_alert_at_its_step(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW], name="collapse")
    assert watch["dataset"] == watched.dataset, "a run's probes measure on its own data unless told"
    for step in (0, 100):
        store_checkpoint(watched.conn, run_id, step)
    watched.look()
    first, second = judged_jobs(watched, watch["id"])
    assert first["kind"] == "attention_profile"
    assert first["parameters"]["length"] == 64
    assert first["label"].startswith(f"collapse · run {run_id} step 0")
    assert first["model"].startswith("checkpoint:")
    finish(watched.conn, first["id"], entropies(2.0, 2.5))
    watched.look()
    assert not watched.alerts()
    finish(watched.conn, second["id"], entropies(1.9, 0.3))
    watched.look()
    (alert,) = watched.alerts(watch=watch["id"])
    expected = {"metric": "entropy_nats", "layer": 0, "head": 1, "step": 100, "value": 0.3, "threshold": 0.5}
    expected |= {"run_id": run_id, "job_id": second["id"], "source": f"run:{run_id}@100", "rule": 0, "others": 0}
    assert expected.items() <= alert.items()
    assert alert["message"] == (
        "entropy_nats of layer 0 head 1 is 0.3 at step 100. Rule: attention_profile.entropy_nats head below 0.5."
    )
    shown = watched.watch(watch["id"])
    assert (shown["models"], shown["models_judged"], shown["alerts"], shown["rules"][0]["met_at"]) == (2, 2, 1, 1)


def test_a_head_that_stays_low_raises_one_alert_and_another_after_it_has_recovered(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW])
    for number, value in enumerate([0.4, 0.3, 0.53, 0.4, 0.6, 0.2]):  # recovered at 0.55: below that it trembles
        store_checkpoint(watched.conn, run_id, 100 * number)
        watched.look(look_at_runs)
        finish(watched.conn, judged_jobs(watched, watch["id"])[-1]["id"], entropies(value))
        watched.look(judge_all)
    assert [(each["step"], each["value"]) for each in watched.alerts()] == [(0, 0.4), (500, 0.2)]


def test_two_loops_at_the_same_time_submit_and_raise_once(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW, "loss jump 0.5"])
    for step in range(5):
        store_checkpoint(watched.conn, run_id, step)
    at_once(watched, look_at_runs)
    assert len(watched.suites()) == 5
    members = judged_jobs(watched, watch["id"])
    assert len({job["id"] for job in members}) == 5
    for job in members:
        finish(watched.conn, job["id"], entropies(0.1, 0.2, 0.3))
    runs.write(watched.conn, run_id, [Metric(step, "loss_nats", 9.0 if step == 7 else 3.0) for step in range(10)])
    at_once(watched, judge_all)
    watched.look()
    assert len(watched.alerts(metric="entropy_nats")) == 3
    assert len(watched.alerts(metric="loss_nats")) == 1
    assert watched.watch(watch["id"])["models_judged"] == 5


def at_once(watched, *followers) -> None:
    barrier = threading.Barrier(4)

    def loop() -> None:
        barrier.wait(20)
        run_looks(watched.settings, followers)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_checkpoints_that_come_and_go_are_left_alone_until_the_run_has_ended(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE])
    store_checkpoint(watched.conn, run_id, 10, "resume")
    store_checkpoint(watched.conn, run_id, 20, "best")
    store_checkpoint(watched.conn, run_id, 30, "best", "interval")
    watched.look()
    assert [each["step"] for each in watched.watch(watch["id"])["newest"]] == [30]
    store_checkpoint(watched.conn, run_id, 40, "last")
    end(watched, run_id)
    watched.look()
    assert {each["step"] for each in watched.watch(watch["id"])["newest"]} == {20, 30, 40}


def test_a_watch_ends_when_its_run_has_and_everything_is_judged(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW])
    store_checkpoint(watched.conn, run_id, 0, "first")
    watched.look()
    end(watched, run_id)
    store_checkpoint(watched.conn, run_id, 1000, "last")
    watched.look(judge_all)
    assert watched.watch(watch["id"])["active"], "a checkpoint has not been seen yet"
    watched.look()
    jobs_ = judged_jobs(watched, watch["id"])
    finish(watched.conn, jobs_[0]["id"], entropies(2.0))
    watched.look()
    assert watched.watch(watch["id"])["active"], "a probe has not ended"
    finish(watched.conn, jobs_[1]["id"], entropies(0.1))
    watched.look()
    shown = watched.watch(watch["id"])
    assert (shown["active"], shown["ended"]) == (False, "its runs have ended")
    assert len(watched.alerts()) == 1


def test_a_run_that_is_queued_again_wakes_its_watch(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", rules=["loss_nats above 10"])
    end(watched, run_id, JobState.FAILED)
    watched.look()
    assert not watched.watch(watch["id"])["active"]
    (job_id,) = watched.conn.execute("SELECT job_id FROM keyhole.run WHERE id = %s", (run_id,)).fetchone()
    with watched.conn.transaction():
        jobs.retry(watched.conn, job_id)
    runs.write(watched.conn, run_id, [Metric(1, "loss_nats", 11.0)])
    watched.look()
    assert watched.watch(watch["id"])["active"]
    assert len(watched.alerts()) == 1


def test_numbers_of_the_training_are_judged_as_they_arrive_and_each_step_once(watched, run_id):
    rules = ["training.entropy_nats head below 0.5", "training.entropy_nats model below 1", "loss_nats above 10"]
    watched.create(target=f"run:{run_id}", rules=rules)
    for step, entropy in ((250, 1.5), (500, 0.4), (750, 0.3)):
        rows = [Metric(step, "entropy_nats", entropy, layer, head) for layer in (0, 1) for head in (0, 1)]
        rows += [Metric(step, "entropy_nats", entropy, layer) for layer in (0, 1)]
        rows += [Metric(step, "entropy_nats", entropy), Metric(step, "loss_nats", 3.0)]
        runs.write(watched.conn, run_id, rows)
        watched.look()
        watched.look()
    alerts = watched.alerts()
    places = {(each["rule"], each["layer"], each["head"], each["step"]) for each in alerts}
    assert places == {(0, layer, head, 500) for layer in (0, 1) for head in (0, 1)} | {(1, None, None, 500)}
    assert len(alerts) == len(places)
    assert alerts[0]["job_id"] is None


def test_steps_that_are_computed_again_after_a_loss_are_not_judged_again(watched, run_id):
    watched.create(target=f"run:{run_id}", rules=["loss jump 1"])
    rows = [Metric(step, "loss_nats", 6.0 if step == 40 else 3.0) for step in range(10, 80, 10)]
    runs.write(watched.conn, run_id, rows)
    watched.look()
    runs.forget_after(watched.conn, run_id, 20)
    watched.look()
    runs.write(watched.conn, run_id, [*rows[2:], Metric(80, "loss_nats", 7.0)])
    watched.look()
    assert [each["step"] for each in watched.alerts()] == [40, 80]
    assert watched.alerts()[0]["message"] == (
        "loss_nats is 6 at step 40, 3 nats above the median of the 3 before. Rule: training loss jump 1 nats."
    )


def test_a_loss_that_is_not_finite_raises_an_alert_that_can_be_read(watched, run_id):
    watched.create(target=f"run:{run_id}", rules=["loss jump 1"])
    runs.write(watched.conn, run_id, [Metric(10, "loss_nats", 3.0), Metric(20, "loss_nats", float("nan"))])
    watched.look()
    (alert,) = watched.alerts()
    assert (alert["step"], alert["value"], alert["threshold"]) == (20, "NaN", 4.0)


def test_spectral_norms_are_judged_by_matrix(watched, run_id):
    watched.create(target=f"run:{run_id}", rules=["sigma of weights above 20", "sigma of updates matrix q above 1"])
    for step, sigma in ((0, 5.0), (250, 25.0)):
        update = None if step == 0 else 2.0
        names = ((0, "q"), (0, "k"), (None, "embedding"))
        rows = [Matrix(step, layer, name, 8, 8, sigma, update) for layer, name in names]
        runs.write(watched.conn, run_id, [], rows)
        watched.look()
    found = {(each["metric"], each["layer"], each["matrix"], each["step"], each["value"]) for each in watched.alerts()}
    weights = {("weight_sigma", layer, name, 250, 25.0) for layer, name in ((0, "q"), (0, "k"), (None, "embedding"))}
    assert found == weights | {("update_sigma", 0, "q", 250, 2.0)}


def test_the_bound_probe_gives_sigma_and_the_margin_of_entropy(watched, run_id):
    rules = ["sigma of product above 1000", "sigma of scores above 50", "entropy within 0.1 of bound",
             "entropy within 0.01 of bound minimum"]  # fmt: skip
    probe = {"kind": "entropy_bound", "parameters": SMALL}
    watch = watched.create(target=f"run:{run_id}", probes=[probe], rules=rules)
    store_checkpoint(watched.conn, run_id, 100)
    watched.look()
    (job,) = judged_jobs(watched, watch["id"])
    summaries = {
        "log10_sigma_product": {(0, 0): 3.5, (0, 1): 2.5},
        "log10_sigma": {(0, 0): 1.5, (0, 1): 2.0, (1, 0): None},  # undefined where no score is finite
        "gap_mean": {(0, 0): 0.05, (0, 1): 0.5},
        "gap_min": {(0, 0): {"mean": 0.04, "minimum": 0.02}, (0, 1): {"mean": 0.3, "minimum": 0.001}},
    }
    finish(watched.conn, job["id"], summaries)
    watched.look()
    found = {(each["rule"], each["metric"], each["head"]): each["value"] for each in watched.alerts()}
    assert found == {
        (0, "sigma_product", 0): pytest.approx(10**3.5, rel=1e-12),
        (1, "sigma", 1): pytest.approx(100.0, rel=1e-12),
        (2, "gap_mean", 0): 0.05,
        (3, "gap_min", 1): 0.001,
    }


def test_a_probe_that_failed_is_told_and_judged_when_it_has_been_tried_again(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW])
    store_checkpoint(watched.conn, run_id, 100)
    watched.look()
    (job,) = judged_jobs(watched, watch["id"])
    fail(watched.conn, job["id"])
    watched.look()
    (seen,) = watched.watch(watch["id"])["newest"]
    assert seen["judged"]
    assert seen["problem"] == f"job {job['id']} (attention_profile) failed: No memory is left."
    end(watched, run_id)
    watched.look()
    assert not watched.watch(watch["id"])["active"]
    with watched.conn.transaction():
        jobs.retry(watched.conn, job["id"])
    watched.look()
    assert watched.watch(watch["id"])["active"]
    finish(watched.conn, job["id"], entropies(0.1))
    watched.look()
    (seen,) = watched.watch(watch["id"])["newest"]
    assert seen["problem"] is None
    assert len(watched.alerts()) == 1


def test_only_new_checkpoints_are_probed_if_so_asked(watched, run_id):
    store_checkpoint(watched.conn, run_id, 100)
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], existing=False)
    store_checkpoint(watched.conn, run_id, 200)
    watched.look()
    seen = {each["step"]: each["suite_id"] is not None for each in watched.watch(watch["id"])["newest"]}
    assert seen == {100: False, 200: True}


def test_a_model_that_cannot_be_measured_is_told_and_left(watched, run_id):
    watch = watched.create(
        target=f"run:{run_id}", probes=[{"kind": "attention_profile", "parameters": {"length": 4000}}]
    )
    store_checkpoint(watched.conn, run_id, 100)
    watched.look()
    shown = watched.watch(watch["id"])
    assert "positions for 128 tokens" in shown["problem"]
    assert shown["models_failed"] == 1
    watched.look()
    assert watched.watch(watch["id"])["problem"] is None
    assert "positions for 128" in watched.watch(watch["id"])["newest"][0]["problem"]
    assert not watched.suites()


def test_a_stopped_watch_does_nothing_and_a_resumed_one_catches_up(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=["loss_nats above 5"])
    assert watched.http.post(f"/v1/watches/{watch['id']}/stop").json()["ended"] == "stopped"
    store_checkpoint(watched.conn, run_id, 100)
    runs.write(watched.conn, run_id, [Metric(10, "loss_nats", 6.0)])
    watched.look()
    assert not watched.alerts()
    assert not watched.watch(watch["id"])["newest"]
    assert watched.http.post(f"/v1/watches/{watch['id']}/resume").json()["active"]
    watched.look()
    assert len(watched.alerts()) == 1
    assert len(watched.watch(watch["id"])["newest"]) == 1


def test_nothing_is_submitted_in_the_name_of_a_revoked_token(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE])
    watched.conn.execute("UPDATE keyhole.api_token SET revoked_at = now() WHERE id = %s", (watched.submitter,))
    store_checkpoint(watched.conn, run_id, 100)
    watched.look()
    problem, models = watched.conn.execute(
        "SELECT problem, (SELECT count(*) FROM keyhole.watch_model) FROM keyhole.watch WHERE id = %s", (watch["id"],)
    ).fetchone()
    assert "revoked" in problem
    assert models == 0
    (suites,) = watched.conn.execute("SELECT count(*) FROM keyhole.suite").fetchone()
    assert suites == 0


def test_a_defect_in_one_watch_is_told_by_it_logged_once_and_keeps_no_other_waiting(watched, run_id):
    broken = watched.create(target=f"run:{run_id}", rules=["loss_nats above 5"])["id"]
    watch = watched.create(target=f"run:{run_id}", rules=["loss_nats above 5"])["id"]
    good = watched.conn.execute("SELECT body FROM keyhole.watch WHERE id = %s", (broken,)).fetchone()[0]
    watched.conn.execute(
        "UPDATE keyhole.watch SET body = jsonb_set(body, '{rules}', '[{\"of\": \"another version\"}]') WHERE id = %s",
        (broken,),
    )
    runs.write(watched.conn, run_id, [Metric(10, "loss_nats", 6.0)])
    with capture_logs() as logged:
        for _ in range(3):
            watched.look()
    assert [each["watch"] for each in logged if each["event"] == "watch_not_judged"] == [broken]
    told = "SELECT problem FROM keyhole.watch WHERE id = %s"
    assert (
        "Applying the rules failed unexpectedly (ValidationError)"
        in watched.conn.execute(told, (broken,)).fetchone()[0]
    )
    assert [alert["watch_id"] for alert in watched.alerts()] == [watch]
    watched.conn.execute("UPDATE keyhole.watch SET body = %s WHERE id = %s", (Jsonb(good), broken))
    watched.look()
    assert watched.watch(broken)["problem"] is None
    assert {alert["watch_id"] for alert in watched.alerts()} == {broken, watch}


def test_a_defect_at_submitting_is_told_by_the_watch_and_logged_once(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE])["id"]
    watched.conn.execute(
        "UPDATE keyhole.watch SET body = jsonb_set(body, '{probes}', '[{\"of\": \"another version\"}]') WHERE id = %s",
        (watch,),
    )
    store_checkpoint(watched.conn, run_id, 100)
    with capture_logs() as logged:
        watched.look()
        watched.look()
    assert [each["watch"] for each in logged if each["event"] == "checkpoint_not_submitted"] == [watch]
    (problem,) = watched.conn.execute("SELECT problem FROM keyhole.watch WHERE id = %s", (watch,)).fetchone()
    assert "Submitting the probes failed unexpectedly (ValidationError)" in problem


def test_a_watch_of_a_suite_looks_at_all_of_its_runs_each_for_itself(watched):
    first, second = (
        trained_run(watched.conn, name=name, state=JobState.RUNNING, losses=[(0, 7.0)]) for name in ("one", "two")
    )
    (suite_id,) = watched.conn.execute("INSERT INTO keyhole.suite (name) VALUES ('s') RETURNING id").fetchone()
    watch = watched.create(target=f"suite:{suite_id}", rules=["loss_nats above 5"])
    for position, run in enumerate((first, second)):
        watched.conn.execute(
            "INSERT INTO keyhole.suite_job (suite_id, position, job_id, reused) "
            "SELECT %s, %s, job_id, false FROM keyhole.run WHERE id = %s",
            (suite_id, position, run),
        )
        runs.write(watched.conn, run, [Metric(10 + position, "loss_nats", 6.0)])
    watched.look()
    assert {(each["run_id"], each["step"]) for each in watched.alerts()} == {(first, 10), (second, 11)}
    assert [each["id"] for each in watched.http.get("/v1/watches", params={"run": second}).json()["items"]] == [
        watch["id"]
    ]
    end(watched, first)
    watched.look()
    assert watched.watch(watch["id"])["active"]
    end(watched, second)
    watched.look()
    assert not watched.watch(watch["id"])["active"]


def test_a_deleted_job_or_suite_keeps_no_watch_waiting(watched, run_id):
    watch = watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW])
    store_checkpoint(watched.conn, run_id, 100)
    watched.look()
    (job,) = judged_jobs(watched, watch["id"])
    jobs.set_state(watched.conn, job["id"], JobState.CANCELLED)
    with watched.conn.transaction():
        jobs.delete(watched.conn, job["id"])
    end(watched, run_id)
    watched.look()
    assert not watched.watch(watch["id"])["active"]


def test_other_jobs_of_the_kind_are_none_of_the_watchs_business(watched, run_id):
    watched.create(target=f"run:{run_id}", probes=[PROBE], rules=[LOW])
    with watched.conn.transaction():
        other = jobs.insert(watched.conn, submission(kind="attention_profile"))
    finish(watched.conn, other, entropies(0.1))
    watched.look()
    assert not watched.alerts()
