"""What a probe hands back for one shard."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Measurement:
    """Rows for the result tables, and the figures of the run-time self-check.

    ``rows`` maps a table to its columns in table order without ``job_id``, each of the table's own type, sorted by
    (layer, head, sequence, query). ``checks`` are stored with the shard.
    """

    rows: Mapping[str, Mapping[str, np.ndarray]]
    checks: Mapping[str, float]


def key_columns(layers: int, heads: int, sequences: range, queries: range) -> dict[str, np.ndarray]:
    """Columns layer, head, sequence and query of every combination, in this order."""
    shape = (layers, heads, len(sequences), len(queries))
    axes = {
        "layer": np.arange(layers, dtype=np.int16)[:, None, None, None],
        "head": np.arange(heads, dtype=np.int16)[None, :, None, None],
        "sequence": np.asarray(sequences, dtype=np.int32)[None, None, :, None],
        "query": np.asarray(queries, dtype=np.int32)[None, None, None, :],
    }
    return {name: np.broadcast_to(axis, shape).reshape(-1) for name, axis in axes.items()}
