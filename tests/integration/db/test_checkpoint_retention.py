"""Which checkpoints of a run stay: reasons that no longer hold are taken away, and what is kept for none is deleted."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psycopg
import pytest

from db import stored_files
from db.repositories import checkpoints, jobs
from services.contracts.errors import KeyholeError
from services.contracts.states import JobState
from services.contracts.training.training import Checkpoints
from tests.conftest import MigratedDatabase
from tests.integration.db.stored_checkpoints import new_run, store, write_files
from tests.integration.new_jobs import submission

Keep = Callable[..., dict[int, list[str]]]


@pytest.fixture
def kept(conn: psycopg.Connection, tmp_path: Path) -> Keep:
    """Store checkpoints at these steps, tidying after each as a run does; returns reasons by step."""

    def run(steps: Sequence[tuple[int, Sequence[str], float | None]], **policy: object) -> dict[int, list[str]]:
        run_id = new_run(conn)
        for step, reasons, loss in steps:
            resume = str(step).encode() if "resume" in reasons else None
            files = write_files(tmp_path / str(step), {"w": np.full(3, step)}, resume=resume)
            store(conn, run_id, step, files, reasons=reasons, loss=loss)
            with conn.transaction():
                checkpoints.tidy(conn, run_id, Checkpoints.model_validate(policy), step)
        rows = checkpoints.of_run(conn, run_id)
        for row in rows:
            names = [file.name for file in stored_files.files_of(conn, row.id)]
            assert row.resumable == ("resume.safetensors" in names)
        assert sum(row.resumable for row in rows) <= 1 or policy.get("keep_optimizer")
        return {row.step: row.reasons + ["*"] * row.resumable for row in rows}

    return run


def test_only_the_lowest_loss_is_the_best_and_the_earliest_of_equal_ones(kept: Keep) -> None:
    steps = [(0, ["first"], 5.0), (10, ["best"], 3.0), (20, ["best"], 2.0), (30, ["best"], 2.0), (40, ["last"], 4.0)]
    assert kept(steps) == {0: ["first"], 20: ["best"], 40: ["last"]}


def test_a_state_for_resuming_goes_with_the_next_one(kept: Keep) -> None:
    steps = [(0, ["first", "resume"], None), (100, ["resume"], None), (200, ["interval", "resume"], None)]
    assert kept(steps) == {0: ["first"], 200: ["interval", "resume", "*"]}


def test_the_optimizer_stays_with_every_checkpoint_if_asked(kept: Keep) -> None:
    steps = [(0, ["first", "resume"], None), (100, ["resume"], None), (200, ["interval", "resume"], None)]
    assert kept(steps, keep_optimizer=True) == {0: ["first", "*"], 200: ["interval", "resume", "*"]}


def test_the_newest_of_an_interval_are_kept_and_none_that_has_another_reason_is_lost(kept: Keep) -> None:
    steps = [(step, ["interval", "log"] if step == 1 else ["interval"], None) for step in range(5)]
    assert kept(steps, keep=2) == {1: ["log"], 3: ["interval"], 4: ["interval"]}


def test_the_last_is_the_highest_step(kept: Keep) -> None:
    assert kept([(10, ["last"], None), (20, ["last"], None)]) == {20: ["last"]}


def test_what_a_lost_attempt_left_goes_unless_an_equal_one_is_computed_again(
    conn: psycopg.Connection, tmp_path: Path
) -> None:
    run_id = new_run(conn)
    policy = Checkpoints()

    def at(step: int, value: float, reasons: Sequence[str], loss: float) -> int:
        number = store(conn, run_id, step, write_files(tmp_path, {"w": np.array([value])}), reasons=reasons, loss=loss)
        with conn.transaction():
            checkpoints.tidy(conn, run_id, policy, step)
        return number

    first = at(0, 0.0, ["first"], 5.0)
    equal, otherwise = at(10, 1.0, ["asked"], 3.0), at(20, 2.0, ["best"], 1.0)
    at(30, 3.0, ["interval"], 4.0)
    checkpoints.go_back(conn, run_id, 0)
    assert at(10, 1.0, ["best"], 3.0) == equal
    assert at(20, 2.5, ["interval"], 3.5) != otherwise
    assert {row.step: (row.id, row.reasons) for row in checkpoints.of_run(conn, run_id)}.items() >= {
        0: (first, ["first"]),
        10: (equal, ["best"]),
    }.items()
    at(40, 4.0, ["last"], 3.6)
    assert [row.step for row in checkpoints.of_run(conn, run_id)] == [0, 10, 20, 40]


def test_a_checkpoint_that_a_job_being_inserted_is_to_read_stays(
    conn: psycopg.Connection, database: MigratedDatabase, tmp_path: Path
) -> None:
    run_id = new_run(conn, JobState.SUCCEEDED)
    checkpoint = store(conn, run_id, 1, write_files(tmp_path, {"w": np.ones(1)}), reasons=[])
    reading = submission(model_source=f"checkpoint:{checkpoint}")
    with database.connect() as other, other.transaction():
        jobs.insert(other, reading)
        assert checkpoints.remove_unwanted(conn) == 0, "its lock is held"
    assert checkpoints.remove_unwanted(conn) == 0, "the job is there"
    conn.execute("UPDATE keyhole.job SET state = 'succeeded'")
    assert checkpoints.remove_unwanted(conn) == 1
    with pytest.raises(KeyholeError, match=f"There is no checkpoint:{checkpoint} any more"), conn.transaction():
        jobs.insert(conn, reading)
    other_model = submission(other_models=[(f"checkpoint:{checkpoint}", "sha256:x")], reuse_key="other")
    with pytest.raises(KeyholeError, match=f"There is no checkpoint:{checkpoint} any more"), conn.transaction():
        jobs.insert(conn, other_model)


def test_nobody_holds_a_checkpoint_between_the_look_at_it_and_its_deletion(
    conn: psycopg.Connection, database: MigratedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run(conn, JobState.SUCCEEDED)
    checkpoint = store(conn, run_id, 1, write_files(tmp_path, {"w": np.ones(1)}), reasons=[])
    monkeypatch.setattr(checkpoints, "_READERS", "SELECT pg_sleep(5) WHERE checkpoint.id < 0 OR pg_sleep(5) IS NULL")

    def remove() -> None:
        with database.connect() as other:
            checkpoints.remove_unwanted(other)

    removing = threading.Thread(target=remove)
    removing.start()
    asleep = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    while conn.execute(asleep).fetchone() is None and removing.is_alive():
        time.sleep(0.02)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("SELECT FROM keyhole.checkpoint WHERE id = %s FOR KEY SHARE NOWAIT", (checkpoint,))
    removing.join()


def test_the_newest_resumable_checkpoint_is_where_a_run_goes_on(conn: psycopg.Connection, tmp_path: Path) -> None:
    run_id = new_run(conn)
    assert checkpoints.newest_resumable(conn, run_id) is None
    for step, resume in ((10, b"10"), (20, b"20"), (30, None)):
        store(conn, run_id, step, write_files(tmp_path / str(step), {"w": np.ones(1)}, resume=resume))
    found = checkpoints.newest_resumable(conn, run_id)
    assert found is not None
    assert found.step == 20


@pytest.mark.parametrize(("place", "step"), [("first", 0), ("last", 20), ("best", 10), ("10", 10), ("11", None)])
def test_places_of_a_run(conn: psycopg.Connection, tmp_path: Path, place: str, step: int | None) -> None:
    run_id = new_run(conn)
    for at, loss in ((0, 5.0), (10, 2.0), (20, None)):
        store(conn, run_id, at, write_files(tmp_path / str(at), {"w": np.ones(1)}), loss=loss)
    found = checkpoints.at(conn, run_id, place)
    assert (None if found is None else found.step) == step
