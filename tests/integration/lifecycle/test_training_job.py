"""Attempts on a training job, in this process and on a real database, ended wherever a process can be killed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import psycopg
import pytest
import torch
from psycopg import Connection
from transformers import GPT2Config, GPT2LMHeadModel

from db.repositories import attempts, checkpoints, jobs, runs, shards
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.states import AttemptOutcome, JobState
from tests.conftest import MigratedDatabase
from tests.integration.lifecycle.training_attempts import (
    MODEL,
    CountingLedger,
    T,
    attempt_on,
    cut_after_a_segment,
    served,
    submitted,
    trajectory,
)
from workers import training_job
from workers.lifecycle import Ledger
from workers.measuring import ClaimLostError
from workers.training import assembly
from workers.training_sink import DatabaseSink


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    (home / "models").mkdir()
    tokens = np.random.default_rng(0).integers(0, 32, (64, 16), dtype=np.int32)
    tokens[:, 1::2] = tokens[:, ::2]
    np.save(home / "data" / "tokens.npy", tokens)
    return Settings(home=home)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def undisturbed(conn: Connection, database: MigratedDatabase, settings: Settings) -> dict[str, Any]:
    job_id = submitted(conn, settings)
    served(conn, database, settings, job_id)
    return trajectory(conn, job_id)


def test_an_undisturbed_run_leaves_what_it_is_asked_for(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["job"] == ("succeeded", 3)
    assert undisturbed["steps_done"] == (6,)
    kept = {step: set(reasons) - {"best"} for step, reasons, *_ in undisturbed["checkpoints"]}
    # best may be any of the validated steps 0, 3 and 6, which are there for other reasons too
    assert kept == {
        0: {"first"},
        1: {"log"},
        2: {"log"},
        3: {"interval"},
        4: {"log"},
        6: {"interval", "last", "resume"},
    }
    assert sum("best" in reasons for _, reasons, *_ in undisturbed["checkpoints"]) == 1
    assert [row[4] for row in undisturbed["checkpoints"]] == [False] * 5 + [True]
    assert [step for step, _ in undisturbed["state"]] == [6]
    assert {step for step, metric, *_ in undisturbed["metrics"] if metric == "loss_nats"} == {1, 2, 3, 4, 5, 6}
    assert {step for step, metric, *_ in undisturbed["metrics"] if metric == "validation_loss_nats"} == {0, 3, 6}
    assert {step for step, *_ in undisturbed["matrices"]} == {0, 3, 6}


def test_a_run_killed_at_every_fourth_transaction_goes_on_as_if_nothing_had_been(
    conn: Connection, database: MigratedDatabase, settings: Settings, undisturbed: dict[str, Any]
) -> None:
    counted = CountingLedger(database.owner_url, patience_s=5)
    training_job.run(attempt_on(conn, submitted(conn, settings)).token, "cpu", settings, counted)
    counted.close()
    assert counted.calls > 20
    for last in range(2, counted.calls + 1, 4):
        for committed in (False, True):
            job_id = submitted(conn, settings)
            served(conn, database, settings, job_id, last=last, committed=committed)
            if jobs.get(conn, job_id).state != JobState.SUCCEEDED:  # type: ignore[union-attr]  # it is there
                served(conn, database, settings, job_id)
            assert trajectory(conn, job_id) == undisturbed, f"killed at transaction {last}, {committed=}"


def test_a_run_killed_again_and_again_gets_to_its_end(
    conn: Connection, database: MigratedDatabase, settings: Settings
) -> None:
    job_id, whole = (submitted(conn, settings, steps=24, variants=["sigma_reparam", "natq"]) for _ in range(2))
    for last in (14, 40, 41):
        served(conn, database, settings, job_id, last=last, committed=False)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert 0 < job.shards_done < job.shards
    served(conn, database, settings, job_id)
    served(conn, database, settings, whole)
    assert trajectory(conn, job_id) == trajectory(conn, whole)


def test_with_the_optimizer_kept_a_run_goes_on_from_the_middle_of_a_segment(
    conn: Connection, database: MigratedDatabase, settings: Settings
) -> None:
    asked: dict[str, Any] = {"checkpoints": {"every": 1, "resume_every": 4, "keep_optimizer": True}}
    whole = submitted(conn, settings, **asked)
    served(conn, database, settings, whole)
    expected = trajectory(conn, whole)
    assert [step for step, _ in sorted(expected["state"])] == [0, 1, 2, 3, 4, 5, 6]
    for last in range(14, 40):
        cut = submitted(conn, settings, **asked)
        run_id = runs.of_job(conn, cut)
        assert run_id is not None
        served(conn, database, settings, cut, last=last, committed=True)
        found = checkpoints.newest_resumable(conn, run_id)
        if found is not None and found.step % 4:
            break
        with conn.transaction():
            jobs.request_cancel(conn, cut)  # it was killed before its first checkpoint
    else:
        pytest.fail("no attempt was killed in the middle of a segment with a state to go on from")
    served(conn, database, settings, cut)
    events = conn.execute("SELECT data FROM keyhole.job_event WHERE job_id = %s AND type = 'resumed'", (cut,))
    assert {"step": found.step, "checkpoint": found.id} in [row[0] for row in events.fetchall()]
    assert trajectory(conn, cut) == expected


def test_a_stale_attempt_writes_nothing_and_what_it_wrote_beyond_the_state_is_forgotten(
    conn: Connection, database: MigratedDatabase, settings: Settings
) -> None:
    job_id = submitted(conn, settings, checkpoints={"every": 100, "resume_every": 6})
    stale = attempt_on(conn, job_id)
    ledger = Ledger(database.owner_url, patience_s=5)
    member = ledger.transact(lambda conn: training_job._member(conn, stale.token))
    assert member is not None
    made = assembly.assembled(training_job._order(member, None, {}), None, "cpu", settings)
    sink = DatabaseSink(ledger, member.run_id, made.trainer, None, settings.home, None, {})
    segment = ledger.transact(lambda conn: shards.claim(conn, stale.token))
    assert segment is not None
    sink.enter(segment)
    made.trainer.begin(sink)
    made.trainer.advance(3, sink)
    sink.flush()
    assert steps_of(conn, member.run_id) == {0, 1, 2, 3}
    made.trainer.advance(5, sink)

    with conn.transaction():
        attempts.end(conn, stale.token, AttemptOutcome.LOST)
    fresh = attempt_on(conn, job_id)
    with conn.transaction():
        assert shards.claim(conn, fresh.token) is not None
    for late in (sink.flush, lambda: sink.finish(made.trainer.advance(6, sink))):
        with pytest.raises(ClaimLostError):
            late()
    assert steps_of(conn, member.run_id) == {0, 1, 2, 3}
    assert [row.step for row in checkpoints.of_run(conn, member.run_id)] == [0]
    with conn.transaction():
        attempts.end(conn, fresh.token, AttemptOutcome.LOST)

    last = attempt_on(conn, job_id)
    again = ledger.transact(lambda conn: shards.claim(conn, last.token))
    assert again is not None
    beginning = assembly.assembled(training_job._order(member, None, {}), None, "cpu", settings)
    DatabaseSink(ledger, member.run_id, beginning.trainer, None, settings.home, None, {}).enter(again)
    assert steps_of(conn, member.run_id) == {0}
    ledger.close()


def steps_of(conn: Connection, run_id: int) -> set[int]:
    rows = conn.execute("SELECT DISTINCT step FROM keyhole.training_metric WHERE run_id = %s", (run_id,)).fetchall()
    return {row[0] for row in rows}


def test_a_cancelled_job_is_written_to_no_more(
    conn: Connection, database: MigratedDatabase, settings: Settings
) -> None:
    job_id = submitted(conn, settings)
    attempt = attempt_on(conn, job_id)

    class Cancelling(CountingLedger):
        def transact(self, function: Callable[[Connection], T], patience_s: float | None = None) -> T:
            if self.calls == 20:
                with conn.transaction():
                    assert jobs.request_cancel(conn, job_id) is JobState.CANCELLING
            return super().transact(function, patience_s)

    ledger = Cancelling(database.owner_url, patience_s=5)
    training_job.run(attempt.token, "cpu", settings, ledger)  # gives up without an error
    ledger.close()
    with conn.transaction():
        attempts.end(conn, attempt.token, AttemptOutcome.CANCELLED)
    job = jobs.get(conn, job_id)
    assert job is not None
    assert job.state == JobState.CANCELLED
    with conn.transaction():
        jobs.retry(conn, job_id)
    served(conn, database, settings, job_id)
    whole = submitted(conn, settings)
    served(conn, database, settings, whole)
    assert trajectory(conn, job_id) == trajectory(conn, whole)


def test_a_diverging_run_fails_and_names_step_value_and_last_good_checkpoint(
    conn: Connection, database: MigratedDatabase, settings: Settings
) -> None:
    job_id = submitted(
        conn,
        settings,
        steps=40,
        clip=None,
        optimizer={"name": "sgd", "learning_rate": 100.0, "momentum": 0.99},
        checkpoints={"every": 1, "resume_every": 40},
    )
    with pytest.raises(KeyholeError, match=r"diverged at step \d+: the (loss|gradient norm) is (nan|inf)") as failed:
        served(conn, database, settings, job_id)
    assert failed.value.code is ErrorCode.DIVERGED
    run_id = runs.of_job(conn, job_id)
    assert run_id is not None
    last = checkpoints.of_run(conn, run_id)[-1]
    assert f"checkpoint:{last.id}, of step {last.step}" in failed.value.message
    assert f"diverged at step {last.step + 1}:" in failed.value.message
    assert f"--model checkpoint:{last.id}" in failed.value.hint
    assert max(steps_of(conn, run_id)) == last.step  # what led there is stored
    finite = conn.execute(
        "SELECT count(*) FROM keyhole.training_metric WHERE run_id = %s AND value IN ('NaN', 'Infinity')", (run_id,)
    ).fetchone()
    assert finite == (0,)


def test_a_run_that_goes_on_needs_nothing_of_the_model_it_started_from(
    conn: Connection, database: MigratedDatabase, settings: Settings, tmp_path: Path
) -> None:
    """Another host has the database, the data and no model folder."""
    import shutil

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.1)
    folder = settings.home / "models" / "pretrained"
    GPT2LMHeadModel(config).save_pretrained(folder)
    whole, cut = (submitted(conn, settings, f"path:{folder}", steps=12, variants=["qk_norm"]) for _ in range(2))
    served(conn, database, settings, whole)
    cut_after_a_segment(conn, database, settings, cut)
    shutil.rmtree(folder)
    served(conn, database, settings, cut)
    assert trajectory(conn, cut) == trajectory(conn, whole)


def test_another_number_of_threads_is_told(conn: Connection, database: MigratedDatabase, settings: Settings) -> None:
    job_id = submitted(conn, settings, steps=12)
    cut_after_a_segment(conn, database, settings, job_id)
    torch.set_num_threads(2)
    served(conn, database, settings, job_id)
    told = conn.execute("SELECT data FROM keyhole.job_event WHERE job_id = %s AND type = 'resumed'", (job_id,))
    assert [row[0]["changed"] for row in told.fetchall()] == [{"threads": [1, 2]}]
    job = jobs.get(conn, job_id)
    assert job is not None
    assert job.environment is not None
    assert job.environment["threads"] == 2
    assert job.environment["memory_estimate_bytes"] > 0


def test_a_step_that_does_not_fit_is_refused_before_the_first(
    conn: Connection, database: MigratedDatabase, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits of 65,536 sequences of 16 tokens, 12 bytes for each entry of the vocabulary: 6·10¹¹ bytes."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16_000_000_000))
    wide = MODEL.replace("vocabulary=32", "vocabulary=50257")
    job_id = submitted(conn, settings, wide, batch=65_536, sequences_per_step=1_000_000)
    with pytest.raises(KeyholeError, match="batch 65,536, and length 16 takes about") as refused:
        served(conn, database, settings, job_id)
    assert refused.value.code is ErrorCode.OUT_OF_MEMORY
    run_id = runs.of_job(conn, job_id)
    assert run_id is not None
    assert steps_of(conn, run_id) == set()


def test_a_state_that_is_gone_is_said_to_be(conn: Connection, database: MigratedDatabase, settings: Settings) -> None:
    job_id = submitted(conn, settings, steps=12)
    cut_after_a_segment(conn, database, settings, job_id)
    run_id = runs.of_job(conn, job_id)
    conn.execute("DELETE FROM keyhole.checkpoint WHERE run_id = %s", (run_id,))
    with pytest.raises(KeyholeError, match="none is there") as refused:
        served(conn, database, settings, job_id)
    assert refused.value.code is ErrorCode.NOT_FOUND
    assert "Submit it again with --force" in refused.value.hint


def test_only_one_attempt_at_a_time_trains_a_run(conn: psycopg.Connection, settings: Settings) -> None:
    submitted(conn, settings)
    with conn.transaction():
        assert attempts.open_attempt(conn, "training", "tests", "cpu", 60.0) is not None
        assert attempts.open_attempt(conn, "training", "tests", "cpu", 60.0) is None
