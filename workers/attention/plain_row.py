"""One row of a pattern in float64, written as the definition reads: what run-time checks compare faster ways with.

It shares nothing with ``workers.attention.rows``: NumPy, keys repeated by head, one query.
"""

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from workers.attention.inputs import LayerAttention


def plain_row(attention: LayerAttention, sequence: int, position: int) -> Float64[np.ndarray, "head outcome"]:
    """Weights of keys 0 … position, and last the weight of the sink (0 without one), of every head."""
    query, key = _array(attention.query[sequence, :, position]), _array(attention.key[sequence, :, : position + 1])
    key = key.repeat(len(query) // len(key), axis=0)
    scores = np.einsum("hd,hjd->hj", query, key) * attention.scaling
    if attention.softcap is not None:
        scores = attention.softcap * np.tanh(scores / attention.softcap)
    if attention.mask is not None:
        seen = attention.mask[:1, :, position, : position + 1].cpu().numpy()[0]
        scores = np.where(seen, scores, -np.inf)
    sink = np.full(len(scores), -np.inf) if attention.sinks is None else _array(attention.sinks)
    scores = np.column_stack([scores, sink])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def departure_from_output(
    row: Float64[np.ndarray, "head outcome"], attention: LayerAttention, sequence: int, position: int
) -> float:
    """Largest ‖Σ_j a_ij v_j − y_i‖ / ‖y_i‖ over the heads: the weights against the model's own forward pass."""
    value = _array(attention.value[sequence, :, : position + 1])
    value = value.repeat(len(row) // len(value), axis=0)
    output = _array(attention.output[sequence, position])
    apart = np.linalg.norm(np.einsum("hj,hjd->hd", row[:, :-1], value) - output, axis=1)
    scale = np.linalg.norm(output, axis=1)
    return float(np.max(np.where(scale == 0, apart, apart / np.where(scale == 0, 1, scale))))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()
