"""Entropy, its bound, sparsity and ranks by brute force: one row and one singular value decomposition after another."""

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from torch import Tensor

from tests.unit.workers.reference import Layer, Recording


def bound(sigma: float, keys: int) -> float:
    """The theorem as it is written; underflows where sigma is in the hundreds."""
    if keys == 1:
        return 0.0
    beta = math.exp(-sigma * math.sqrt(keys / (keys - 1)))
    rest = (keys - 1) * beta
    return math.log1p(rest) + sigma * math.sqrt(keys * (keys - 1)) * beta / (1 + rest)


def entropy(weights: np.ndarray) -> float:
    some = weights[weights > 0]
    return float(-(some * np.log(some)).sum())


def statistics(recording: Recording, queries: range, ranked: range) -> dict[str, np.ndarray]:
    """By column name [layer, head, sequence], all that can be told from the patterns."""
    found = [
        [
            [_of_pattern(layer, s, h, queries, ranked) for s in range(len(layer.pattern))]
            for h in range(layer.pattern.shape[1])
        ]
        for layer in recording.layers
    ]
    return {
        name: np.array([[[each[name] for each in head] for head in layer] for layer in found])
        for name in found[0][0][0]
    }


def _of_pattern(layer: Layer, sequence: int, head: int, queries: range, ranked: range) -> dict[str, float]:
    rows = [_of_row(layer.pattern[sequence, head, q], layer.visible[sequence, head, q]) for q in queries]
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    told = [row["tightness"] for row in rows if not math.isnan(row["tightness"])]
    singular = np.linalg.svd(layer.pattern[sequence, head][list(ranked)].double().numpy(), compute_uv=False)
    shares = singular**2 / (singular**2).sum()
    return {
        "sigma_mean": mean["sigma"],
        "sigma_max": max(row["sigma"] for row in rows),
        "entropy_mean": mean["entropy"],
        "entropy_min": min(row["entropy"] for row in rows),
        "log10_bound": math.log10(mean["bound"]) if mean["bound"] else -math.inf,
        "gap_mean": mean["entropy"] - mean["bound"],
        "gap_min": min(row["entropy"] - row["bound"] for row in rows),
        "tightness": float(np.mean(told)) if told else math.nan,
        "top_1": mean["top_1"],
        "top_8": mean["top_8"],
        "top_5_percent": mean["top_5_percent"],
        "stable_rank": 1 / shares[0],
        "effective_rank": math.exp(entropy(shares)),
    }


def _of_row(pattern: Tensor, visible: Tensor) -> dict[str, float]:
    weights = np.sort(pattern[visible].double().numpy())[::-1]
    weights = weights / weights.sum()  # what a sink took is given back
    scores = np.log(weights)  # but for a constant
    sigma, keys = float(np.linalg.norm(scores - scores.mean())), len(weights)
    here = entropy(weights)
    tightness = math.nan
    if keys > 1:
        needed: Any = brentq(lambda x: bound(x, keys) - here, 0, sigma * (1 + 1e-9) + 1e-9)
        tightness = needed / sigma
    return {
        "entropy": here,
        "sigma": sigma,
        "bound": bound(sigma, keys),
        "tightness": tightness,
        "top_1": weights[0],
        "top_8": weights[:8].sum(),
        "top_5_percent": weights[: math.ceil(keys / 20)].sum(),
    }
