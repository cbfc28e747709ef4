"""How much memory forward and backward passes need, of frozen weights or in training, before they are tried."""

from workers.models.loaded import Architecture

_BYTES = {"float32": 4, "bfloat16": 2}
# Values that autograd keeps per token and layer, in units of d_model (the MLP is three to four times as wide).
# Measured on SmolLM2-135M in float32: 431 MB at 256 tokens and 1,719 MB at 1,024; estimated 434 and 1,736.
_KEPT_PER_LAYER = 16
# The logits in the model's dtype and in float32 and the gradient of either, per token and vocabulary entry.
_LOGIT_BYTES = 12


def estimate_bytes(architecture: Architecture, length: int, batch: int, dtype: str) -> int:
    """Weights, activations kept for the backward pass, and logits, in bytes; not what a probe itself adds."""
    size = _BYTES[dtype]
    tokens = length * batch
    weights = architecture.parameters * size
    activations = tokens * architecture.layers * _KEPT_PER_LAYER * architecture.d_model * size
    logits = tokens * architecture.vocabulary_size * _LOGIT_BYTES
    return weights + activations + logits


# float32, whatever the passes are in: the weight, its gradient, and two moments of AdamW
_TRAINED_BYTES = 16


def training_bytes(architecture: Architecture, length: int, batch: int, dtype: str) -> int:
    """The same of a training step: weights, gradients and optimizer's state in float32, and what its passes keep."""
    passes = estimate_bytes(architecture, length, batch, dtype) - architecture.parameters * _BYTES[dtype]
    return passes + architecture.parameters * _TRAINED_BYTES
