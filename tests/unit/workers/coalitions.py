"""Buried keys by brute force: Python loops over the float64 patterns and gradients of ``reference``."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field

import torch

from tests.unit.workers.reference import Recording

Place = tuple[int, int, int]  # layer, sequence, query


@dataclass
class Expected:
    keys: dict[tuple[int, int, int, int, int], tuple] = field(default_factory=dict)  # … key, direction: figures
    picks: dict[tuple[int, int, int, int, int], tuple] = field(default_factory=dict)  # layer, head, …, key: figures
    queries: dict[Place, tuple[int, int, float]] = field(default_factory=dict)  # qualifying, most heads, best score


def coalitions(
    recording: Recording, deltas: list[torch.Tensor], queries: range, top_k: int, min_heads: int
) -> Expected:
    """Figures of a key: heads, smallest, median and largest rank, largest weight, score; of a pick: place,
    normalised advantage, weight, rank, whether its head agrees."""
    expected = Expected()
    for layer, (found, delta) in enumerate(zip(recording.layers, deltas, strict=True)):
        batch, heads = delta.shape[:2]
        for sequence in range(batch):
            for query in queries:
                members = defaultdict(list)
                for head in range(heads):
                    row = found.visible[sequence, head, query].nonzero()[:, 0].tolist()
                    weights = found.pattern[sequence, head, query].tolist()
                    away = found.value[sequence, head] - found.output[sequence, head, query].detach()
                    advantage = (-(away @ delta[sequence, head, query])).tolist()
                    rms = (sum(advantage[key] ** 2 for key in row) / len(row)) ** 0.5
                    best = sorted((key for key in row if advantage[key]), key=lambda key: -abs(advantage[key]))
                    for place, key in enumerate(best[:top_k], start=1):
                        rank = 1 + sum(weights[other] > weights[key] for other in row)
                        sign = 1 if advantage[key] > 0 else -1
                        pick = (place, advantage[key] / rms, weights[key], rank)
                        members[key, sign].append((head, *pick))
                        expected.picks[layer, head, sequence, query, key] = (*pick, False)
                scores = [0.0]
                for (key, sign), group in members.items():
                    if len(group) < min_heads:
                        continue
                    ranks = sorted(rank for *_, rank in group)
                    scores.append(sum(abs(size) for _, _, size, _, _ in group))
                    weight = max(weight for _, _, _, weight, _ in group)
                    expected.keys[layer, sequence, query, key, sign] = (
                        len(group), ranks[0], statistics.median(ranks), ranks[-1], weight, scores[-1],
                    )  # fmt: skip
                    for head, *pick in group:
                        expected.picks[layer, head, sequence, query, key] = (*pick, True)
                most = max((len(group) for group in members.values()), default=0)
                expected.queries[layer, sequence, query] = (len(scores) - 1, most, max(scores))
    return expected
