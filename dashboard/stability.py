"""Figure 4 in numbers: how far checkpoints are from the end of their own run, against the ends of other runs.

Distances come as a mapping from (first, second), numbers of checkpoints, the smaller first.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from dashboard.formats import NOTHING

Distances = Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Checkpoint:
    number: int
    run: str
    step: int
    model: str


def by_run_and_step(checkpoint: Checkpoint) -> tuple[tuple[str | int, ...], int, int]:
    """Order of checkpoints: ``run 9`` comes before ``run 10``."""
    parts = re.split("([0-9]+)", checkpoint.run)
    run = tuple(int(part) if place % 2 else part for place, part in enumerate(parts))
    return run, checkpoint.step, checkpoint.number


@dataclass(frozen=True)
class ToEnd:
    """How far a checkpoint is from the last one of its run."""

    checkpoint: Checkpoint
    end: Checkpoint
    distance: float


@dataclass(frozen=True)
class AtStep:
    """All runs that have a checkpoint at one step, and it is not their last."""

    step: int
    runs: int
    mean_to_end: float
    farthest_to_end: float
    between_runs: float | None  # mean over every two of these runs, at this step; None of a single run


@dataclass(frozen=True)
class Stability:
    """Within runs and between them. Empty lists and None where the checkpoints do not tell."""

    to_end: list[ToEnd]  # of every checkpoint that is not the last of its run, by run and step
    between_ends: list[float]  # of the last checkpoints of every two runs
    holds_from: int | None  # the claim is true of every checkpoint from this step on; None if of none
    steps: list[AtStep]
    within_runs: float | None  # mean over all pairs of checkpoints of one run
    between_runs: float | None  # mean over all pairs of checkpoints of two runs

    @property
    def told(self) -> bool:
        """Whether there is anything to compare: two runs, and in one of them a checkpoint before its last."""
        return bool(self.to_end and self.between_ends)


def between(distances: Distances, a: int, b: int) -> float:
    return distances[min(a, b), max(a, b)] if a != b else 0.0


def last_of_runs(checkpoints: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The checkpoint of the largest step by run."""
    return {each.run: each for each in sorted(checkpoints, key=by_run_and_step)}


def stability(checkpoints: Sequence[Checkpoint], distances: Distances) -> Stability:
    """The article's claim: a run is nearer to its own end than the ends of different runs are to each other."""
    ends = last_of_runs(checkpoints)
    to_end = [
        ToEnd(each, ends[each.run], between(distances, each.number, ends[each.run].number))
        for each in sorted(checkpoints, key=by_run_and_step)
        if each != ends[each.run]
    ]
    between_ends = [between(distances, a.number, b.number) for a, b in combinations(ends.values(), 2)]
    within, across = [], []
    for a, b in combinations(checkpoints, 2):
        (within if a.run == b.run else across).append(between(distances, a.number, b.number))
    return Stability(
        to_end,
        between_ends,
        _holds_from(to_end, min(between_ends)) if between_ends else None,
        [_at_step(step, to_end, distances) for step in sorted({each.checkpoint.step for each in to_end})],
        fmean(within) if within else None,
        fmean(across) if across else None,
    )


def _at_step(step: int, to_end: Sequence[ToEnd], distances: Distances) -> AtStep:
    there = [each for each in to_end if each.checkpoint.step == step]
    pairs = combinations([each.checkpoint.number for each in there], 2)
    across = [between(distances, a, b) for a, b in pairs]
    to_ends = [each.distance for each in there]
    return AtStep(step, len(there), fmean(to_ends), max(to_ends), fmean(across) if across else None)


def _holds_from(to_end: Sequence[ToEnd], nearest_ends: float) -> int | None:
    """The smallest step from which on every checkpoint, of whichever run, is nearer to its end than that."""
    found = None
    for step in sorted({each.checkpoint.step for each in to_end}, reverse=True):
        if any(each.distance >= nearest_ends for each in to_end if each.checkpoint.step == step):
            break
        found = step
    return found


def words(distance: float | None) -> str:
    """Three decimals, or two digits below a thousandth."""
    if distance is None or math.isnan(distance):
        return NOTHING
    return f"{distance:.3f}" if distance == 0 or distance >= 0.001 else f"{distance:.1e}"
