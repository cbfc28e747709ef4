"""A run in two processes: any of them may be killed, none is left behind, and the first alone writes."""

import signal
from typing import Any

import psutil
import pytest

from services.client import Job, JobFailed
from services.contracts.errors import ErrorCode
from tests.acceptance.cluster import Cluster, eventually
from tests.acceptance.test_training_faults import child_of, train, trajectory

START_S = 240  # three processes import torch


def train_in_two(cluster: Cluster, **changed: Any) -> Job:
    return train(cluster, processes=2, **changed)


def ranks_of(child: psutil.Process) -> list[psutil.Process]:
    """In the order of their ranks, once both are there."""

    def there() -> list[psutil.Process]:
        found = [process for process in child.children() if any("spawn_main" in word for word in process.cmdline())]
        return found if len(found) == 2 else []

    return sorted(eventually("two ranks start", there, START_S), key=lambda process: process.pid)


def gone(processes: list[psutil.Process]) -> None:
    def left() -> bool:
        return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in processes)

    eventually("the ranks have left", left, 30)


def ends(cluster: Cluster, job: Job) -> None:
    eventually(f"job {job.id} is done", lambda: cluster.state(job.id) in ("succeeded", "failed"), START_S)


@pytest.fixture(scope="module")
def undisturbed_run(cluster: Cluster) -> dict[str, Any]:
    with cluster.worker():
        job = train_in_two(cluster)
        ends(cluster, job)
    assert cluster.outcomes(job.id) == ["completed"]
    assert cluster.state(job.id) == "succeeded"
    return trajectory(cluster, job.id) | {"losses": losses(cluster, job)}


def losses(cluster: Cluster, job: Job) -> dict[int, float]:
    rows = cluster.sql(
        "SELECT step, value FROM keyhole.training_metric JOIN keyhole.run ON run.id = run_id "
        "WHERE job_id = %s AND metric = 'validation_loss_nats'",
        job.id,
    )
    return dict(rows)


def test_two_processes_learn_as_one_does(cluster: Cluster, undisturbed_run: dict[str, Any]) -> None:
    """240 steps of float32 sums in another order. Other micro-batches in one process moved the loss of such a run by
    5e-7 nats, one unit in the last place; two hundred are allowed, since this run learns random tokens by heart.
    """
    with cluster.worker():
        job = train(cluster)
        ends(cluster, job)
    assert undisturbed_run["losses"] == pytest.approx(losses(cluster, job), abs=1e-4)


def test_a_killed_rank_costs_an_attempt_and_changes_nothing(cluster: Cluster, undisturbed_run: dict[str, Any]) -> None:
    with cluster.worker() as worker:
        job = train_in_two(cluster)
        first, second = ranks_of(child_of(worker))
        eventually("segments are done", lambda: cluster.shards_done(job.id) >= 2, START_S)
        second.kill()
        ends(cluster, job)
        gone([first, second])
    assert cluster.outcomes(job.id) == ["crashed", "completed"]
    assert trajectory(cluster, job.id) == {key: value for key, value in undisturbed_run.items() if key != "losses"}
    detail = cluster.sql("SELECT detail FROM keyhole.attempt WHERE job_id = %s ORDER BY id LIMIT 1", job.id)
    assert "signal" in detail[0][0]


def test_ranks_leave_with_a_cancelled_job_and_with_a_killed_worker(cluster: Cluster) -> None:
    with cluster.worker() as worker:
        job = train_in_two(cluster, steps=20_000, checkpoints={"every": None, "resume_every": 20})
        ranks = ranks_of(child_of(worker))
        eventually("a segment is done", lambda: cluster.shards_done(job.id) >= 1, START_S)
        job.cancel()
        eventually("the job is cancelled", lambda: cluster.state(job.id) == "cancelled", 30)
        gone(ranks)
        job.retry()
        eventually("another child starts", lambda: worker.children() and cluster.state(job.id) == "running", 60)
        ranks = ranks_of(child_of(worker))
        worker.send(signal.SIGKILL)
        gone(ranks)
    job.cancel()


def test_the_error_of_the_ranks_is_the_jobs(cluster: Cluster) -> None:
    with cluster.worker() as worker:
        job = train_in_two(cluster, optimizer={"name": "sgd", "learning_rate": 100.0, "momentum": 0.99}, clip=None)
        ranks = ranks_of(child_of(worker))
        with pytest.raises(JobFailed, match="diverged at step") as failed:
            job.wait(progress=False)
        gone(ranks)
    assert failed.value.code is ErrorCode.DIVERGED
    assert cluster.outcomes(job.id) == ["failed"]
    traceback = cluster.sql("SELECT error_traceback FROM keyhole.job WHERE id = %s", job.id)[0][0]
    assert "rank 0:" in traceback
