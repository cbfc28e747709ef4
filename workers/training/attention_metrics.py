"""Where attention goes, by layer and head, at a validation: what ``attention_profile`` measures, in means.

Means over sequences and over the queries from ``first_query`` on, whose rows are long enough to tell. Of a layer: mean
over its heads; of the model: over its layers. Heads that share one pattern have no rows of their own. No rows at all
have sigmoid weights, which do not add up to 1, and layers with a soft cap whose heads share a pattern: their averaged
scores are those of no query and key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.attention_definition import Routing
from services.contracts.probes.attention_profile import LOCAL_KEYS
from services.contracts.training.numbers import Metric
from workers.attention import profile, rows, seam, shared
from workers.attention.inputs import AttentionInputs, LayerAttention, Outputs
from workers.training.loop import arithmetic, micro_batches

NAMES = ("entropy_nats", "top_weight", "sink_mass", "local_mass")
_SHORT_ROWS = 32


def first_query(length: int) -> int:
    """Queries before it have too few keys: those below 32, or the first half of a short sequence."""
    return min(_SHORT_ROWS, length // 2)


@dataclass
class _Sums:
    """An observer that adds up, per head, the statistics of each layer's rows as the pass goes by."""

    routing: Routing
    by_layer: dict[int, Tensor] = field(default_factory=dict)  # [name, head], float64
    rows: dict[int, int] = field(default_factory=dict)  # of each head

    def forward(self, attention: LayerAttention) -> None:
        inputs: AttentionInputs = attention
        if self.routing == "shared_softmax":
            if attention.softcap is not None:
                return
            inputs = shared.as_one_head(attention)
        batch, heads, length, _ = inputs.query.shape
        sums = self.by_layer.setdefault(
            attention.layer, torch.zeros(len(NAMES), heads, dtype=torch.float64, device=inputs.query.device)
        )
        for positions in rows.query_blocks(range(first_query(length), length), inputs):
            found = profile.profile_of_block(inputs, positions, LOCAL_KEYS)
            for number, name in enumerate(NAMES):
                sums[number] += getattr(found, name).double().sum((0, 2))
        self.rows[attention.layer] = self.rows.get(attention.layer, 0) + batch * (length - first_query(length))

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing: no gradient is needed."""


@torch.no_grad()
def attention_metrics(
    model: PreTrainedModel,
    routing: Routing,
    sequences: np.ndarray,
    *,
    step: int,
    batch: int,
    device: str,
    dtype: str,
) -> list[Metric]:
    """Metrics of a model attached to the seam over ``sequences`` [sequence, position]; where none, the module says."""
    if routing in ("sigmoid", "shared_sigmoid") or not len(sequences):
        return []
    sums = _Sums(routing)
    with seam.observing(model, [sums]):
        for token_ids in micro_batches(sequences, batch, device):
            with arithmetic(device, dtype):
                model(input_ids=token_ids, use_cache=False)
    means = {layer: (total / sums.rows[layer]).cpu() for layer, total in sorted(sums.by_layer.items())}
    if not means:
        return []
    by_head = routing == "softmax"
    return [row for number, name in enumerate(NAMES) for row in _rows(step, name, number, means, by_head)]


def _rows(step: int, name: str, number: int, means: dict[int, Tensor], by_head: bool) -> Sequence[Metric]:
    found: list[Metric] = []
    for layer, values in means.items():
        heads = values[number]
        if by_head:
            found += [Metric(step, name, float(value), layer, head) for head, value in enumerate(heads)]
        found.append(Metric(step, name, float(heads.mean()), layer))
    model_mean = torch.stack([values[number].mean() for values in means.values()]).mean()
    return [*found, Metric(step, name, float(model_mean))]
