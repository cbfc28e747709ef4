"""What breaks in such services, done to real processes. Each ends in the right state with exactly the right rows."""

import os
import signal
import time

import psutil
import pytest

from services.client import JobCancelled, JobFailed
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import RUN_JOB_TASK
from tests.acceptance.cluster import LEASE_S, STANDARD_SEQUENCES, Cluster, Service, eventually

Fingerprint = tuple[int, str]


def running_child(cluster: Cluster, worker: Service, job_id: int, shards_done: int = 3) -> psutil.Process:
    """The worker's child, once it is in the middle of the job."""
    eventually("some shards are done", lambda: cluster.shards_done(job_id) >= shards_done)
    child = worker.children()[0]
    assert cluster.shards_done(job_id) < STANDARD_SEQUENCES, "the job is too short to be disturbed"
    return child


def succeeds(cluster: Cluster, job_id: int) -> None:
    eventually("the job has succeeded", lambda: cluster.state(job_id) == "succeeded")


def test_a_killed_child_is_replaced(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        running_child(cluster, worker, job.id).kill()
        succeeds(cluster, job.id)
    assert cluster.outcomes(job.id) == ["crashed", "completed"]
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_killed_worker_takes_its_child_along_and_another_goes_on(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        child = running_child(cluster, worker, job.id)
        worker.send(signal.SIGKILL)
        eventually("the orphan has left", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
    with cluster.worker():
        succeeds(cluster, job.id)
    assert cluster.outcomes(job.id) == ["lost", "completed"]
    assert cluster.fingerprint(job.id) == undisturbed


def test_worker_and_child_killed_together(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        child = running_child(cluster, worker, job.id)
        worker.send(signal.SIGKILL)
        child.kill()
    with cluster.worker():
        succeeds(cluster, job.id)
    assert cluster.outcomes(job.id) == ["lost", "completed"]
    assert cluster.fingerprint(job.id) == undisturbed


def test_the_same_message_ten_times_changes_nothing(cluster: Cluster, undisturbed: Fingerprint) -> None:
    import celery

    sender = celery.Celery(broker=cluster.environment["KEYHOLE_BROKER_URL"])
    with cluster.worker(), cluster.worker():
        job = cluster.submit()
        for _ in range(10):
            sender.send_task(RUN_JOB_TASK, args=[job.id], queue="probe")
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_child_stopped_past_its_lease_loses_its_shard_and_writes_nothing_late(
    cluster: Cluster, undisturbed: Fingerprint
) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        child = running_child(cluster, worker, job.id)
        child.suspend()
        eventually("the attempt is lost", lambda: "lost" in cluster.outcomes(job.id), 6 * LEASE_S)
        if child.is_running():
            child.resume()
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_worker_and_child_stopped_past_the_lease_and_continued(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        child = running_child(cluster, worker, job.id)
        worker.send(signal.SIGSTOP)
        child.suspend()
        eventually("the attempt is lost", lambda: "lost" in cluster.outcomes(job.id), 6 * LEASE_S)
        with cluster.worker():
            eventually("another attempt is under way", lambda: len(cluster.outcomes(job.id)) >= 2)
            child.resume()
            worker.send(signal.SIGCONT)
            succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_flushed_broker_loses_no_job(cluster: Cluster, undisturbed: Fingerprint) -> None:
    job = cluster.submit()
    with cluster.valkey.client() as broker:
        broker.flushall()
    with cluster.worker():
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_broker_that_is_away_at_submission_and_comes_back(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker():
        eventually("the worker serves", lambda: cluster.sql("SELECT 1 FROM keyhole.worker"))
        assert cluster.valkey_process is not None
        cluster.valkey_process.stop(5)
        try:
            job = cluster.submit()
            assert cluster.state(job.id) == "queued"
        finally:
            cluster.valkey_process = cluster.valkey.start()
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_a_database_restarted_in_the_middle(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        running_child(cluster, worker, job.id)
        cluster.postgres.stop(immediate=True)
        time.sleep(1.5 * LEASE_S)
        cluster.postgres.start()
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_sigterm_gives_the_shards_back_without_a_mark(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        running_child(cluster, worker, job.id)
        worker.send(signal.SIGTERM)
        worker.process.wait(30)
    assert cluster.outcomes(job.id) == ["released"]
    assert cluster.sql("SELECT state, crashes FROM keyhole.job WHERE id = %s", job.id) == [("queued", 0)]
    with cluster.worker():
        succeeds(cluster, job.id)
    assert cluster.fingerprint(job.id) == undisturbed


def test_two_workers_share_a_job(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker(), cluster.worker():
        job = cluster.submit(sequences=2 * STANDARD_SEQUENCES)
        succeeds(cluster, job.id)
    attempts = cluster.sql(
        "SELECT count(DISTINCT worker) FROM keyhole.attempt WHERE job_id = %s AND outcome = 'completed'", job.id
    )
    assert attempts == [(2,)]
    shared = cluster.sql("SELECT count(*) FROM keyhole.gradient_scale WHERE job_id = %s", job.id)
    assert shared == [(undisturbed[0] * 2,)]


def test_cancel_while_queued(cluster: Cluster) -> None:
    job = cluster.submit()
    job.cancel()
    assert cluster.state(job.id) == "cancelled"
    with pytest.raises(JobCancelled):
        job.wait(progress=False)


def test_cancel_while_starting_and_while_running_and_after(cluster: Cluster) -> None:
    with cluster.worker() as worker:
        starting = cluster.submit()
        eventually("a child starts", worker.children)
        starting.cancel()
        eventually("the job is cancelled", lambda: cluster.state(starting.id) == "cancelled", 15)
        assert cluster.outcomes(starting.id) == ["cancelled"]

        running = cluster.submit(sequences=400)
        child = running_child(cluster, worker, running.id)
        running.cancel()
        eventually("the job is cancelled", lambda: cluster.state(running.id) == "cancelled", 15)
        eventually("the child is gone", lambda: not child.is_running(), 10)
        done = cluster.shards_done(running.id)
        assert 0 < done < 400
        assert cluster.fingerprint(running.id)[0] == done * 4 * 4 * 30  # rows of the finished shards, and no others
        with pytest.raises(KeyholeError) as refused:
            running.cancel()
        assert refused.value.code is ErrorCode.CONFLICT

        running.retry()
        succeeds(cluster, running.id)
        assert cluster.fingerprint(running.id)[0] == 400 * 4 * 4 * 30


def test_the_time_limit_ends_a_job_and_its_child(cluster: Cluster) -> None:
    with cluster.worker() as worker:
        job = cluster.client().submit(
            "gradient_scale",
            model=f"path:{cluster.home}/models/tiny",
            dataset=f"tokens:{cluster.home}/data/tokens.npy",
            force=True,
            time_limit_s=2,
            sequences=400,
            length=128,
            queries={"start": 8, "step": 1},
        )
        with pytest.raises(JobFailed) as failed:
            job.wait(progress=False)
        assert failed.value.code is ErrorCode.TIME_LIMIT
        eventually("the child is gone", lambda: not worker.children(), 10)
    assert cluster.outcomes(job.id) == ["timed_out"]


def test_a_job_that_kills_every_child_fails_for_good(cluster: Cluster) -> None:
    with cluster.worker() as worker:
        job = cluster.submit()
        killed: set[int] = set()
        while cluster.state(job.id) != "failed":
            for child in worker.children():
                if child.pid not in killed and cluster.shards_done(job.id) == 0:
                    killed.add(child.pid)
                    os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.05)
    assert cluster.outcomes(job.id) == ["crashed"] * 3
    error = cluster.sql("SELECT error_code, error_message FROM keyhole.job WHERE id = %s", job.id)
    assert error[0][0] == "attempts_exhausted"
    assert "signal 9" in error[0][1]


def test_a_model_exchanged_after_submission_is_noticed(cluster: Cluster) -> None:
    import shutil

    other = cluster.home / "models" / "exchanged"
    shutil.copytree(cluster.home / "models" / "tiny", other)
    job = cluster.client().submit(
        "gradient_scale",
        model=f"path:{other}",
        dataset=f"tokens:{cluster.home}/data/tokens.npy",
        sequences=2,
        length=128,
    )
    config = other / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    with cluster.worker(), pytest.raises(JobFailed) as failed:
        job.wait(progress=False)
    assert failed.value.code is ErrorCode.MODEL_CHANGED
