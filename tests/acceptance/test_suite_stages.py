"""A suite in stages with real processes: two small trainings, then the distances of all their checkpoints' patterns."""

import httpx

from services.contracts.states import JobState
from tests.acceptance.cluster import Cluster, eventually

MODEL = "config:gpt-tiny?layers=2&heads=2&width=32&mlp=64&context=64&vocabulary=256"
TRAINING = {
    "steps": 6,
    "length": 32,
    "sequences_per_step": 4,
    "batch": 4,
    "data": {"tokenizer": "none", "validation_sequences": 4},
    "validation": {"every": 3, "attention_sequences": 0, "spectra": False},
    "checkpoints": {"every": 3, "resume_every": 3},
    "schedule": {"warmup_steps": 0},
}
STABILITY = {"sequences": 2, "length": 32, "queries": {"start": 8, "step": 4}}


def restart_api(cluster: Cluster) -> None:
    """Kill the API, and with it the loop that submits stages, and start another one at the same address."""
    (old,) = [service for service in cluster.services if service.name == "api" and service.process.poll() is None]
    old.process.kill()
    old.process.wait()
    port = cluster.api_url.rpartition(":")[2]
    arguments = ["uvicorn", "services.api.app:create_app", "--factory", "--host", "127.0.0.1", "--port", port]
    cluster.start_service("api", arguments)
    eventually("the API is ready", lambda: httpx.get(f"{cluster.api_url}/v1/health/ready").status_code == 200)


def test_checkpoints_of_both_runs_are_compared_once_they_have_ended_whatever_became_of_the_api(
    cluster: Cluster,
) -> None:
    suite = cluster.client().submit_suite(
        model=MODEL,
        dataset="tokens:" + str(cluster.home / "data" / "tokens.npy"),
        probes=[{"kind": "training", "parameters": {**TRAINING, "seed": seed}} for seed in (0, 1)],
        stages=[{"models": ["runs"], "probes": [{"kind": "pattern_stability", "parameters": STABILITY}]}],
        force=True,
    )
    with cluster.worker():
        first = suite.detail.members[0].id
        eventually("the first run is on its way", lambda: cluster.state(first) in ("running", "succeeded"))
        restart_api(cluster)
        cluster.client().suite(suite.id).wait(progress=False)
    detail = suite.refresh().detail
    assert [(job.kind, job.stage, job.state) for job in detail.members] == [
        ("training", 0, JobState.SUCCEEDED),
        ("training", 0, JobState.SUCCEEDED),
        ("pattern_stability", 1, JobState.SUCCEEDED),
    ]
    jobs = cluster.sql("SELECT count(*) FROM keyhole.suite_job WHERE suite_id = %s", suite.id)
    assert jobs == [(3,)], "the stage is submitted once"
    run_ids = [
        row[0]
        for row in cluster.sql(
            "SELECT id FROM keyhole.run WHERE job_id IN (%s, %s) ORDER BY id", *(job.id for job in detail.members[:2])
        )
    ]
    compared = cluster.sql(
        "SELECT number, run, step FROM analysis.pattern_checkpoint WHERE job_id = %s ORDER BY number",
        detail.members[2].id,
    )
    assert compared == [
        (number, f"run {run_id}", step)
        for number, (run_id, step) in enumerate((run_id, step) for run_id in run_ids for step in (0, 3, 6))
    ]
    between = cluster.sql(
        "SELECT avg(js_nats) > 0 FROM keyhole.pattern_distance WHERE job_id = %s AND first < 3 AND second >= 3",
        detail.members[2].id,
    )
    assert between == [(True,)], "two seeds have patterns of their own"
