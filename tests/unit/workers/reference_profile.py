"""Attention profiles by brute force: from whole float64 patterns, one row at a time with NumPy and SciPy."""

import numpy as np
import scipy.stats
import torch

from tests.unit.workers.reference import Layer, Recording

NEAREST = 8


def profiles(recording: Recording, queries: range) -> dict[str, np.ndarray]:
    """Each statistic as [layer, head, sequence, query]."""
    batch, heads = recording.layers[0].pattern.shape[:2]
    found: dict[str, np.ndarray] = {}
    shape = (len(recording.layers), heads, batch, len(queries))
    for where in np.ndindex(shape):
        layer, head, sequence, number = where
        for name, value in _row(recording.layers[layer], sequence, head, queries[number]).items():
            found.setdefault(name, np.empty(shape))[where] = value
    return found


def _row(layer: Layer, sequence: int, head: int, query: int) -> dict[str, float]:
    weights = layer.pattern[sequence, head, query].double().numpy()
    keys = layer.visible[sequence, head, query].numpy()
    return {
        "entropy_nats": scipy.stats.entropy(weights[keys]),  # of the weights divided by their sum
        "top_weight": weights.max(),
        "top_key": int(np.flatnonzero(weights == weights.max())[0]),
        "self_weight": weights[query],
        "previous_weight": weights[query - 1] if query else np.nan,
        "local_mass": sum(weights[key] for key in range(query + 1) if query - key < NEAREST),
        "sink_mass": weights[0],
        "no_key_mass": 1 - weights.sum(),
    }


def detection_patterns(token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Which (query, key) pairs make up each head type in one sequence, found by comparing its tokens."""
    tokens = token_ids.tolist()
    patterns = {name: torch.zeros(len(tokens), len(tokens)) for name in ("induction", "duplicate", "previous")}
    for query, token in enumerate(tokens):
        if query:
            patterns["previous"][query, query - 1] = 1
        for key in range(query):
            if tokens[key] == token:
                patterns["duplicate"][query, key] = 1
                patterns["induction"][query, key + 1] = 1
    return patterns


def head_type_scores(recording: Recording, token_ids: torch.Tensor) -> dict[str, np.ndarray]:
    """Each score as [layer, head, sequence]: weight on the pairs of the type by the number of queries that have one."""
    scores: dict[str, list] = {"induction": [], "duplicate": [], "previous": []}
    for layer in recording.layers:
        for name, of_layer in scores.items():
            wanted = torch.stack([detection_patterns(ids)[name] for ids in token_ids]).to(layer.pattern.dtype)
            queries = wanted.sum((1, 2))[:, None]
            of_layer.append(((layer.pattern * wanted[:, None]).sum((2, 3)) / queries).T.numpy())
    return {f"{name}_score": np.stack(of_layer) for name, of_layer in scores.items()}
