"""What one layer's attention gets, and what observers see of it.

Axes: query heads ``head``, key/value heads ``kv_head``; query head h uses key/value head h // (head / kv_head).
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

Queries = Float[Tensor, "batch head position d_key"]
Keys = Float[Tensor, "batch kv_head position d_key"]
Values = Float[Tensor, "batch kv_head position d_value"]
Outputs = Float[Tensor, "batch position head d_value"]
Mask = Bool[Tensor, "#batch #head position position"]  # True where the key is in the query's row


@dataclass(frozen=True)
class AttentionInputs:
    """One layer's call: scores are ``softcap * tanh(scaling * q·k / softcap)``, or ``scaling * q·k`` without a cap."""

    layer: int
    query: Queries  # after rotary embedding and any norm
    key: Keys
    value: Values
    scaling: float
    mask: Mask | None  # none means causal, nothing else
    softcap: float | None
    sinks: Float[Tensor, " head"] | None  # a score per head that takes weight and gives no value


@dataclass(frozen=True)
class LayerAttention(AttentionInputs):
    """The same with the head outputs y, before the output projection. All tensors are detached from autograd."""

    output: Outputs
    module: nn.Module  # the attention module, for its weights
    hidden: Float[Tensor, "batch position d_model"] | None  # its input x, after the layer's norm; only if asked for
