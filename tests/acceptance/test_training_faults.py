"""Training runs whose processes are killed, stopped and sent away: the weights are those of an undisturbed run."""

import signal
import time
from typing import Any

import psutil
import pytest

from services.client import Job, JobFailed
from services.contracts.errors import ErrorCode
from tests.acceptance.cluster import Cluster, Service, eventually

MODEL = "config:gpt-tiny?layers=2&heads=2&width=32&mlp=64&context=64&vocabulary=256"
SEGMENTS = 12


def train(cluster: Cluster, **changed: Any) -> Job:
    """Some seconds of training in segments of 20 steps, from many of which a checkpoint stays."""
    parameters = {
        "steps": 20 * SEGMENTS,
        "sequences_per_step": 16,
        "batch": 4,
        "length": 32,
        "validation": {"every": 30, "log_every": 7, "attention_sequences": 2},
        "checkpoints": {"every": 50, "log_spaced": True, "resume_every": 20},
        **changed,
    }
    return cluster.client().submit(
        "training", model=MODEL, dataset=f"tokens:{cluster.home}/data/tokens.npy", force=True, **parameters
    )


def trajectory(cluster: Cluster, job_id: int) -> dict[str, Any]:
    """What a run left: its checkpoints by the digests of their files, and every number but those of time."""
    checkpoints = cluster.sql(
        """
        SELECT checkpoint.step, reasons, validation_loss_nats, resumable, file.name, file.sha256
        FROM keyhole.checkpoint JOIN keyhole.run ON run.id = run_id
        JOIN keyhole.checkpoint_file AS file ON file.checkpoint_id = checkpoint.id
        WHERE job_id = %s ORDER BY 1, file.name
        """,
        job_id,
    )
    metrics, matrices = (
        cluster.sql(
            f"""
            SELECT count(*), md5(string_agg(line::text, ';' ORDER BY line)) FROM (
                SELECT ({columns}) AS line FROM keyhole.{table} JOIN keyhole.run ON run.id = run_id
                WHERE job_id = %s AND {condition}) AS lines
            """,
            job_id,
        )
        for table, columns, condition in (
            ("training_metric", "step, metric, layer, head, value", "metric <> 'tokens_per_s'"),
            ("training_matrix", "step, layer, matrix, weight_sigma, update_sigma", "true"),
        )
    )
    done = cluster.sql("SELECT steps_done FROM keyhole.run WHERE job_id = %s", job_id)
    return {"checkpoints": checkpoints, "metrics": metrics, "matrices": matrices, "steps_done": done}


def child_of(worker: Service) -> psutil.Process:
    return eventually("the child starts", worker.children)[0]


def segments_done(cluster: Cluster, job: Job, number: int) -> None:
    eventually(f"{number} segments are done", lambda: cluster.shards_done(job.id) >= number)


def succeeds(cluster: Cluster, job: Job) -> None:
    eventually(f"job {job.id} is done", lambda: cluster.state(job.id) in ("succeeded", "failed"))
    error = cluster.sql("SELECT error_code, error_message FROM keyhole.job WHERE id = %s", job.id)
    assert error == [(None, None)]


@pytest.fixture(scope="module")
def undisturbed_run(cluster: Cluster) -> dict[str, Any]:
    with cluster.worker():
        job = train(cluster)
        succeeds(cluster, job)
    assert cluster.outcomes(job.id) == ["completed"]
    found = trajectory(cluster, job.id)
    assert found["steps_done"] == [(20 * SEGMENTS,)]
    assert {step for step, *_ in found["checkpoints"]} >= {0, 1, 2, 4, 8, 16, 32, 50, 64, 100, 128, 150, 200, 240}
    return found


def test_a_child_killed_at_its_start_in_a_step_and_at_a_checkpoint_and_then_the_worker(
    cluster: Cluster, undisturbed_run: dict[str, Any]
) -> None:
    with cluster.worker() as worker:
        job = train(cluster)
        child_of(worker).kill()
        eventually("the first attempt has ended", lambda: cluster.outcomes(job.id)[:1] == ["crashed"])
        segments_done(cluster, job, 2)
        time.sleep(0.15)  # some way into a segment
        child_of(worker).kill()
        segments_done(cluster, job, 5)
        child = child_of(worker)
        worker.send(signal.SIGKILL)
        eventually("the orphan has left", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
    assert cluster.shards_done(job.id) < SEGMENTS
    with cluster.worker():
        succeeds(cluster, job)
    assert cluster.outcomes(job.id) == ["crashed", "crashed", "lost", "completed"]
    assert trajectory(cluster, job.id) == undisturbed_run


def test_a_run_is_cancelled_retried_and_given_back_by_a_worker_that_is_sent_away(
    cluster: Cluster, undisturbed_run: dict[str, Any]
) -> None:
    with cluster.worker() as worker:
        job = train(cluster)
        segments_done(cluster, job, 1)
        job.cancel()
        eventually("the job is cancelled", lambda: cluster.state(job.id) == "cancelled", 15)
        done = cluster.shards_done(job.id)
        assert 0 < done < SEGMENTS
        job.retry()
        segments_done(cluster, job, done + 1)
        worker.send(signal.SIGTERM)
        worker.process.wait(30)
    cancelled, released = cluster.outcomes(job.id)
    assert cancelled in ("cancelled", "completed")  # whichever of supervisor and child was first to notice
    assert released == "released"
    assert cluster.state(job.id) == "queued"
    with cluster.worker():
        succeeds(cluster, job)
    assert trajectory(cluster, job.id) == undisturbed_run
    resumed = cluster.sql("SELECT data FROM keyhole.job_event WHERE job_id = %s AND type = 'resumed'", job.id)
    assert len(resumed) == 2
    assert all(data["step"] % 20 == 0 and "changed" not in data for (data,) in resumed)


def test_a_diverging_run_fails_and_its_checkpoints_stay(cluster: Cluster) -> None:
    with cluster.worker():
        job = train(cluster, optimizer={"name": "sgd", "learning_rate": 100.0, "momentum": 0.99}, clip=None)
        with pytest.raises(JobFailed, match="diverged at step") as failed:
            job.wait(progress=False)
    assert failed.value.code is ErrorCode.DIVERGED
    assert "checkpoint:" in failed.value.hint
    kept = cluster.sql(
        "SELECT count(*) FROM keyhole.checkpoint JOIN keyhole.run ON run.id = run_id WHERE job_id = %s", job.id
    )
    assert kept[0][0] >= 2
    assert cluster.outcomes(job.id) == ["failed"]
