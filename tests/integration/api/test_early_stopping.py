"""Hopeless settings of sweeps are given up: once, with the reason, and what ended or stood before is left alone."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from structlog.testing import capture_logs

from db.repositories import jobs, suite_stages, sweeps
from services.api import early_stopping
from services.api import suite_stages as following_stages
from services.api.follower import Surroundings
from services.contracts.states import JobState
from services.contracts.sweeps import SweepMember
from tests.integration.api.background import Background, background, members, train

RATE = "optimizer.learning_rate"
SWEEP = {
    "parameters": {"steps": 4, "validation": {"every": 2}, "length": 16, "sequences_per_step": 2, "batch": 2},
    "axes": {RATE: [0.001, 0.1]},
    "seeds": [0, 1],
    "early_stopping": {"after_steps": 2, "worse_by_nats": 0.5},
}


@pytest.fixture
def sweeping(database, tmp_path) -> Iterator[Background]:
    with background(database, tmp_path) as made:
        yield made


def states(conn: psycopg.Connection, sweep_id: int) -> list[tuple[float, int, str]]:
    return [(each.setting[RATE], each.seed, str(each.state)) for each in sweeps.members(conn, sweep_id)]


def of(conn: psycopg.Connection, sweep_id: int, rate: float, seed: int) -> SweepMember:
    return next(e for e in sweeps.members(conn, sweep_id) if (e.setting[RATE], e.seed) == (rate, seed))


def look(sweeping: Background) -> None:
    sweeping.run(early_stopping.look)


def test_members_of_a_hopeless_setting_are_cancelled_with_the_reason_and_their_checkpoints_stay(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 4.6)], state=JobState.RUNNING)
    look(sweeping)
    assert states(conn, sweep_id) == [
        (0.001, 0, "succeeded"),
        (0.1, 0, "cancelled"),
        (0.001, 1, "queued"),
        (0.1, 1, "cancelled"),
    ]
    given_up = of(conn, sweep_id, 0.1, 0)
    assert "0.6000 above the best, more than worse_by_nats 0.5" in (given_up.stopped or "")
    kept = conn.execute("SELECT count(*) FROM keyhole.checkpoint WHERE run_id = %s", (given_up.run_id,)).fetchone()
    assert kept == (2,)


def test_what_is_not_hopeless_goes_on(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 4.4)], state=JobState.RUNNING)
    look(sweeping)
    assert [state for _, _, state in states(conn, sweep_id)] == ["succeeded", "running", "queued", "queued"]


def test_a_running_member_is_asked_to_stop_by_its_worker(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    hopeless = of(conn, sweep_id, 0.1, 0).job_id
    train(conn, hopeless, [(0, 7.0), (2, 5.0)], state=JobState.RUNNING)
    conn.execute(
        "INSERT INTO keyhole.attempt (job_id, number, worker, device, lease_until) "
        "VALUES (%s, 1, 'a worker', 'cpu', clock_timestamp() + interval '1 minute')",
        (hopeless,),
    )
    look(sweeping)
    assert of(conn, sweep_id, 0.1, 0).state is JobState.CANCELLING


def test_a_member_that_is_retried_is_left_alone(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 5.0)], state=JobState.RUNNING)
    look(sweeping)
    with conn.transaction():
        jobs.retry(conn, of(conn, sweep_id, 0.1, 0).job_id)
    look(sweeping)
    assert (of(conn, sweep_id, 0.1, 0).state, of(conn, sweep_id, 0.1, 0).stopped) == ("queued", None)


def test_members_that_stood_before_the_sweep_go_on(sweeping, conn):
    earlier, _ = sweeping.sweep(**{**SWEEP, "early_stopping": None, "seeds": [0]})
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 5.0)], state=JobState.RUNNING)
    look(sweeping)
    assert [state for _, _, state in states(conn, sweep_id)] == ["succeeded", "running", "queued", "cancelled"]
    assert [state for _, _, state in states(conn, earlier)] == ["succeeded", "running"]


def test_several_that_look_at_once_cancel_each_member_once(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**SWEEP)
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 5.0)], state=JobState.RUNNING)

    async def at_once(around: Surroundings) -> None:
        await asyncio.gather(*(early_stopping.look(around) for _ in range(6)))

    sweeping.run(at_once)
    events = conn.execute("SELECT count(*) FROM keyhole.job_event WHERE type = 'cancelled'").fetchone()
    assert events == (2,)


def test_a_defect_in_one_sweep_is_logged_once_and_keeps_no_other_from_being_looked_at(sweeping, conn):
    broken, _ = sweeping.sweep(**SWEEP)
    sweep_id, _ = sweeping.sweep(**{**SWEEP, "seeds": [2, 3]})
    conn.execute(
        "UPDATE keyhole.sweep SET body = jsonb_set(body, '{early_stopping}', '{\"of_another\": 1}') WHERE id = %s",
        (broken,),
    )
    train(conn, of(conn, sweep_id, 0.001, 2).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 2).job_id, [(0, 7.0), (2, 5.0)], state=JobState.RUNNING)
    with capture_logs() as logged:
        look(sweeping)
        look(sweeping)
    assert [state for _, _, state in states(conn, sweep_id)] == ["succeeded", "cancelled", "queued", "cancelled"]
    assert [each["sweep"] for each in logged if each["event"] == "sweep_not_looked_at"] == [broken]


def test_a_sweep_without_early_stopping_is_not_touched(sweeping, conn):
    sweep_id, _ = sweeping.sweep(**{**SWEEP, "early_stopping": None})
    train(conn, of(conn, sweep_id, 0.001, 0).job_id, [(0, 7.0), (2, 4.0), (4, 3.0)])
    train(conn, of(conn, sweep_id, 0.1, 0).job_id, [(0, 7.0), (2, 9.0)], state=JobState.RUNNING)
    look(sweeping)
    assert of(conn, sweep_id, 0.1, 0).state is JobState.RUNNING


def test_members_given_up_do_not_keep_the_next_stage_and_best_runs_are_all_seeds_of_the_best_settings(sweeping, conn):
    probe = {"kind": "attention_profile", "parameters": {"length": 16, "queries": {"start": 8}}}
    stages = [{"models": ["best-runs@last"], "probes": [probe]}]
    sweep_id, suite_id = sweeping.sweep(**SWEEP, variants=["control", "natq"], stages=stages)
    for member in sweeps.members(conn, sweep_id):
        if member.setting[RATE] == 0.001 or member.seed == 0:
            loss = 4.0 if member.setting[RATE] == 0.001 else 5.0
            train(conn, member.job_id, [(0, 7.0), (2, loss), (4, loss)])
    look(sweeping)
    sweeping.run(following_stages.look)
    assert suite_stages.of_suite(conn, suite_id)[0].state == "submitted"
    best = [each.run_id for each in sweeps.members(conn, sweep_id) if each.setting[RATE] == 0.001]
    assert [job.label.rpartition(" · ")[2] for job in members(conn, suite_id, stage=1)] == [  # type: ignore[union-attr]
        f"run:{run_id}@4" for run_id in best
    ]
