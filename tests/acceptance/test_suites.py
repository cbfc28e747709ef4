"""Suites with real processes: one pass for several jobs, one child for those that follow, and what faults do to it."""

import os
import signal
from typing import Any

from services.client import Suite
from services.contracts.states import JobState
from tests.acceptance.cluster import STANDARD_SEQUENCES, Cluster, eventually

Fingerprint = tuple[int, str]
QUERIES = {"start": 8, "step": 4}


def submit(cluster: Cluster, sequences: int = STANDARD_SEQUENCES, **probes: dict[str, Any]) -> Suite:
    """Gradient scale, the standard job unless with fewer sequences, and other probes of the same passes."""
    return cluster.client().submit_suite(
        model="path:" + str(cluster.home / "models" / "tiny"),
        dataset="tokens:" + str(cluster.home / "data" / "tokens.npy"),
        probes={"gradient_scale": {"queries": QUERIES}, **probes},
        force=True,
        sequences=sequences,
        length=128,
    )


def job_ids(suite: Suite) -> list[int]:
    return [member.id for member in suite.detail.members]


def riders(cluster: Cluster, suite: Suite) -> set[int]:
    """Jobs of the suite that rode along in another's passes."""
    found = cluster.sql(
        "SELECT DISTINCT job_id FROM keyhole.attempt WHERE leader_id IS NOT NULL AND job_id = ANY(%s)", job_ids(suite)
    )
    return {row[0] for row in found}


def children(cluster: Cluster, suite: Suite) -> int:
    """How many child processes served the suite: each has a log, named by its first attempt."""
    return sum(len(list((cluster.home / "logs" / "jobs").glob(f"{job_id}-*.log"))) for job_id in job_ids(suite))


FEW = 6  # sequences, where nothing has to be hit in its middle


def test_five_probes_share_their_passes_and_others_the_model(cluster: Cluster) -> None:
    with cluster.worker():
        alone = cluster.submit(FEW).wait(progress=False)
        suite = submit(
            cluster, FEW, buried_keys={"min_heads": 2}, ratchet={}, attention_profile={}, jacobian_spectrum={}
        )
        suite.wait(progress=False)
        assert suite.detail.jobs_by_state == {JobState.SUCCEEDED: 5}
        first, *others = job_ids(suite)
        assert riders(cluster, suite) == set(others)
        assert children(cluster, suite) == 1
        assert cluster.fingerprint(first) == cluster.fingerprint(alone.id)
        again = cluster.client().submit_suite(
            model="path:" + str(cluster.home / "models" / "tiny"),
            dataset="tokens:" + str(cluster.home / "data" / "tokens.npy"),
            probes=["shared_routing", "gradient_scale"],
            force=True,
            sequences=2,
            length=64,
        )
        again.wait(progress=False)
        assert children(cluster, again) == 1, "the second job goes on with the model of the first"


def test_a_killed_child_of_shared_passes_loses_no_row(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker() as worker:
        suite = submit(cluster, ratchet={})
        first, second = job_ids(suite)
        eventually("some shards are done", lambda: cluster.shards_done(second) >= 3)
        os.kill(worker.children()[0].pid, signal.SIGKILL)
        suite.wait(progress=False)
        assert cluster.fingerprint(first) == undisturbed
        assert cluster.outcomes(second)[0] == "released", "the rider is not to blame"
        assert cluster.sql("SELECT shards_done = shards FROM keyhole.job WHERE id = %s", second) == [(True,)]


def test_a_cancelled_rider_lets_the_others_finish(cluster: Cluster, undisturbed: Fingerprint) -> None:
    with cluster.worker():
        suite = submit(cluster, ratchet={})
        first, second = job_ids(suite)
        eventually("some shards are done", lambda: cluster.shards_done(second) >= 3)
        cluster.client().job(second).cancel()
        eventually("the rider is cancelled", lambda: cluster.state(second) == "cancelled", 10)
        eventually("the other has succeeded", lambda: cluster.state(first) == "succeeded")
        assert cluster.fingerprint(first) == undisturbed


def test_a_rider_that_fails_does_so_alone(cluster: Cluster) -> None:
    suite = submit(cluster, FEW, buried_keys={})
    first, second = job_ids(suite)
    # more than the model's heads, which no submission gets through
    wrong = "UPDATE keyhole.job SET parameters = parameters || '{\"min_heads\": 99}' WHERE id = %s RETURNING id"
    assert cluster.sql(wrong, second)
    with cluster.worker():
        eventually("both have ended", lambda: suite.refresh().detail.ended)
        assert (cluster.state(first), cluster.state(second)) == ("succeeded", "failed")
