"""One cluster for the fault tests; each test starts the workers it will kill."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import STANDARD_SEQUENCES, Cluster, write_tiny_model, write_tokens


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="kh-cluster-"))
    folder.chmod(0o711)
    running = Cluster(folder)
    try:
        write_tiny_model(running.home / "models" / "tiny")
        write_tokens(running.home / "data" / "tokens.npy")
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def undisturbed(cluster: Cluster) -> tuple[int, str]:
    """Fingerprint of the standard job when nothing went wrong."""
    with cluster.worker():
        job = cluster.submit().wait(progress=False)
    rows, digest = cluster.fingerprint(job.id)
    assert rows == 4 * 4 * STANDARD_SEQUENCES * 30  # layers, heads, sequences, queries 8, 12, …, 124
    return rows, digest
