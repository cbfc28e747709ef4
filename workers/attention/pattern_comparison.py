"""One layer of several models compared, head by head, from what ``workers/attention/spilled.py`` wrote of each.

Memory holds one block of queries of all models and, for each core, some tensors of the size of one model's block; more
models make the block shorter, not larger, until it is a single query.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from workers.attention import rows
from workers.attention.pattern_distance import distances, head_divergences, negative_entropies
from workers.attention.spilled import SpilledModel
from workers.attention.threads import over_cores

Result = TypeVar("Result")

# Weights of all models' blocks together, in elements; those of one model stay within rows.CPU_BLOCK or GPU_BLOCK.
CPU_HELD = 2**24
GPU_HELD = 2**28


@dataclass(frozen=True)
class LayerComparison:
    """Means over a sequence's queries. Axes: ``distance`` as in pattern_distance.distances, ``pair`` as in pairs."""

    by_index: Float[np.ndarray, "distance head sequence pair"]
    by_assignment: Float[np.ndarray, "distance head sequence pair"]
    paired_head: Int[np.ndarray, "pair head"]  # of the second model, for each head of the first
    divergences: Float[np.ndarray, "pair head other"]  # JS of all heads with all, mean over all queries
    sample: "Sample"


@dataclass(frozen=True)
class Sample:
    """What one row of the layer gave, in the first sequence, for checks."""

    pair: int
    by_index: Float[Tensor, "distance head"]
    by_assignment: Float[Tensor, "distance head"]
    reversed: Float[Tensor, "distance head"]  # by index, the second model as the first
    of_itself: Float[Tensor, "distance head"]  # the first model's row from itself


def pairs(models: int) -> list[tuple[int, int]]:
    """Every two of the models, the smaller number first."""
    return list(combinations(range(models), 2))


class Comparison:
    """Several models on the same queries of the same sequences."""

    def __init__(self, models: Sequence[SpilledModel], heads: int, sequences: int, queries: range) -> None:
        self._models, self._heads, self._sequences, self._queries = models, heads, sequences, queries
        self._pairs = pairs(len(models))

    def layer(self, layer: int, sampled: int) -> LayerComparison:
        """All distances of a layer; ``sampled`` is the position of the query that checks get to see."""
        divergences = self._divergences(layer)
        # assigned heads come in the order of the first model's
        paired = np.stack([linear_sum_assignment(costs)[1] for costs in divergences])
        by_index, by_assignment = np.zeros((2, 3, self._heads, self._sequences, len(self._pairs)))
        sampled_pair, sample = layer % len(self._pairs), None
        for sequence, block, patterns in self._blocks(layer):

            def compare(number: int, patterns: list[Tensor] = patterns) -> tuple[Tensor, Tensor]:
                a, b = self._pairs[number]
                return _both_pairings(patterns[a], patterns[b], paired[number])

            for number, (own, assigned) in enumerate(self._over_pairs(compare)):
                by_index[:, :, sequence, number] += _sum(own)
                by_assignment[:, :, sequence, number] += _sum(assigned)
                if (sequence, number) == (0, sampled_pair) and sampled in block:
                    row = block.index(sampled)
                    first, second = (patterns[model][:, row] for model in self._pairs[number])
                    back, itself = distances(second, first), distances(first, first)
                    sample = Sample(number, own[..., row], assigned[..., row], back, itself)
        assert sample is not None
        queries = len(self._queries)
        return LayerComparison(by_index / queries, by_assignment / queries, paired, divergences, sample)

    def _divergences(self, layer: int) -> Float[np.ndarray, "pair head other"]:
        total = np.zeros((len(self._pairs), self._heads, self._heads))
        for _, _, patterns in self._blocks(layer):
            sums = [negative_entropies(pattern) for pattern in patterns]

            def compare(number: int, patterns: list[Tensor] = patterns, sums: list[Tensor] = sums) -> Tensor:
                a, b = self._pairs[number]
                return head_divergences(patterns[a], patterns[b], sums[a], sums[b])

            for number, found in enumerate(self._over_pairs(compare)):
                total[number] += found.cpu().numpy()
        return total / (self._sequences * len(self._queries))

    def _over_pairs(self, compare: Callable[[int], Result]) -> list[Result]:
        """A pair for each core: operations on one block are too small to be shared by several."""
        return over_cores(compare, range(len(self._pairs)), self._models[0].device)

    def _blocks(self, layer: int) -> Iterator[tuple[int, range, list[Tensor]]]:
        """Sequence, positions and all models' patterns, block by block."""
        device = self._models[0].device
        block, held = (rows.CPU_BLOCK, CPU_HELD) if device.type == "cpu" else (rows.GPU_BLOCK, GPU_HELD)
        budget = min(block, held // len(self._models))
        for sequence in range(self._sequences):
            for positions in rows.blocks(self._queries, self._heads, budget):

                def patterns(model: SpilledModel, sequence: int = sequence, positions: range = positions) -> Tensor:
                    return model.patterns(layer, sequence, positions)

                yield sequence, positions, over_cores(patterns, self._models, device)


def _both_pairings(
    first: Float[Tensor, "head query outcome"], second: Float[Tensor, "head query outcome"], paired: np.ndarray
) -> tuple[Float[Tensor, "distance head query"], Float[Tensor, "distance head query"]]:
    """Distances by index and by assignment; heads that the assignment leaves in place are measured once."""
    own = distances(first, second)
    moved = np.flatnonzero(paired != np.arange(len(paired)))
    if len(moved) == 0:
        return own, own
    assigned = own.clone()
    here, there = torch.as_tensor(moved), torch.as_tensor(paired[moved])
    assigned[:, here] = distances(first[here], second[there])
    return own, assigned


def _sum(values: Float[Tensor, "distance head query"]) -> np.ndarray:
    return values.double().sum(-1).cpu().numpy()
