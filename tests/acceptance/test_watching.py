"""A training watched with real processes: its checkpoints are probed as they land, and its collapse is told."""

import pytest

from services.contracts.states import JobState
from tests.acceptance.cluster import Cluster, eventually

MODEL = "config:gpt-tiny?layers=2&heads=2&width=32&mlp=64&context=64&vocabulary=256"
# Without clipping and at such a learning rate attention rests on single keys within some tens of steps.
COLLAPSING = {
    "steps": 40,
    "length": 64,
    "sequences_per_step": 4,
    "batch": 4,
    "clip": None,
    "optimizer": {"learning_rate": 0.3},
    "schedule": {"warmup_steps": 0},
    "data": {"tokenizer": "none", "validation_sequences": 4},
    "validation": {"every": 10, "log_every": 5},
    "checkpoints": {"every": 20, "resume_every": 20},
}


@pytest.mark.timeout(600)  # a training and three probes, each in a process of its own
def test_a_collapse_is_told_from_the_training_and_from_the_probes_of_its_checkpoints(cluster: Cluster) -> None:
    client = cluster.client()
    dataset = "tokens:" + str(cluster.home / "data" / "tokens.npy")
    job = client.submit("training", model=MODEL, dataset=dataset, force=True, **COLLAPSING)
    (run,) = client.runs(limit=1)
    assert run.job_id == job.id
    watch = client.watch(
        f"run:{run.id}",
        probes={"attention_profile": {"sequences": 2, "length": 64, "queries": {"start": 32, "step": 4}}},
        rules=["attention_profile.entropy_nats head below 1.5", "training.entropy_nats head below 1.5"],
    )
    with cluster.worker():
        eventually("the watch has seen the run to its end", lambda: not watch.refresh().detail.active, 400)
    assert watch.detail.ended == "its runs have ended"
    assert job.refresh().state is JobState.SUCCEEDED
    steps = {each.step: each for each in watch.detail.newest}
    assert set(steps) == {0, 20, 40}
    assert all(each.judged and each.problem is None for each in steps.values())
    raised = list(watch.alerts())
    by_probe = [each for each in raised if each.rule == 0]
    by_training = [each for each in raised if each.rule == 1]
    assert by_probe and by_training
    assert all(each.step > 0 and each.value < 1.5 for each in raised)
    for alert in by_probe:
        assert alert.source == f"run:{run.id}@{alert.step}"
        stored = cluster.sql(
            "SELECT mean FROM keyhole.summary "
            "WHERE job_id = %s AND metric = 'entropy_nats' AND layer = %s AND head = %s",
            alert.job_id,
            alert.layer,
            alert.head,
        )
        assert stored == [(alert.value,)]
    for alert in by_training:
        stored = cluster.sql(
            "SELECT value FROM keyhole.training_metric WHERE run_id = %s AND metric = 'entropy_nats' AND step = %s "
            "AND layer = %s AND head = %s",
            run.id,
            alert.step,
            alert.layer,
            alert.head,
        )
        assert stored == [(alert.value,)]
