"""How partitions are grouped: simulated over thousands of jobs, without a database."""

import random
from collections import defaultdict

import pytest

from db import merging
from db.merging import _Partition

MB = 2**20


def _simulate(sizes: list[int]) -> tuple[list[_Partition], dict[int, int]]:
    """Jobs of these sizes end, with a merging round after every twenty; the partitions left, and copies per job."""
    held: list[_Partition] = []
    copies: dict[int, int] = defaultdict(int)
    for job_id, size in enumerate(sizes):
        held.append(_Partition(f"j{job_id}", (job_id,), size))
        if job_id % 20:
            continue
        for group in merging.full_groups(held):
            jobs = tuple(job for one in group for job in one.jobs)
            for job in jobs:
                copies[job] += 1
            held = [one for one in held if one not in group]
            held.append(_Partition(f"m{job_id}", jobs, sum(one.bytes for one in group)))
    return held, copies


@pytest.mark.parametrize("size", [8192, 1 * MB, 64 * MB, 300 * MB, 1500 * MB])
def test_thousands_of_jobs_of_one_size_end_in_few_partitions(size: int) -> None:
    held, copies = _simulate([size] * 3000)
    assert sorted(job for one in held for job in one.jobs) == list(range(3000))
    full = 3000 * size / (merging.LARGEST_BYTES / 2)
    assert len(held) <= full + 6 * merging.FACTOR + 20
    assert max(one.bytes for one in held) <= merging.LARGEST_BYTES
    assert max(copies.values()) <= 6


def test_jobs_of_mixed_sizes_end_in_few_partitions_and_are_seldom_copied() -> None:
    rng = random.Random(0)
    sizes = [int(8192 * 2 ** rng.uniform(0, 17)) for _ in range(5000)]
    held, copies = _simulate(sizes)
    assert len(held) <= sum(sizes) / (merging.LARGEST_BYTES / 2) + 6 * merging.FACTOR + 20
    assert sum(copies.values()) / 5000 < 5


def test_a_job_larger_than_half_the_limit_keeps_its_own_partition() -> None:
    held, copies = _simulate([merging.LARGEST_BYTES] * 40)
    assert len(held) == 40
    assert not copies
