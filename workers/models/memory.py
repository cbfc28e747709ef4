"""How much memory forward and backward passes need, of frozen weights or in training, before they are tried."""

import psutil
import torch

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.training import TrainingParameters
from workers.models.loaded import Architecture

_BYTES = {"float32": 4, "bfloat16": 2}
# Values that autograd keeps per token and layer, in units of d_model (the MLP is three to four times as wide).
# Measured on SmolLM2-135M in float32: 431 MB at 256 tokens and 1,719 MB at 1,024; estimated 434 and 1,736.
_KEPT_PER_LAYER = 16
# Of a parameter in training, float32 whatever the passes are in: the weight, its gradient, and two moments of AdamW.
_TRAINED_BYTES = 16
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


def training_bytes(architecture: Architecture, parameters: TrainingParameters) -> int:
    """The same of a training step of one process: weights, gradients, optimizer's state in float32, and its passes."""
    dtype, weights = parameters.dtype, architecture.parameters
    passes = estimate_bytes(architecture, parameters.length, _sequences_per_pass(parameters), dtype)
    return passes + weights * (_TRAINED_BYTES - _BYTES[dtype])


def device_bytes(device: str) -> int:
    """What there is in all, used or not."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


def require_memory_for_weights(parameters: int, device: str) -> None:
    """Raise KeyholeError (out_of_memory) where so many weights in training are more than the whole device has."""
    needed, there = parameters * _TRAINED_BYTES, device_bytes(device)
    if needed > there:
        raise KeyholeError(
            ErrorCode.OUT_OF_MEMORY,
            f"{parameters:,} parameters with gradients and moments take {needed:,} bytes; {device} has {there:,}.",
            "Make the configuration smaller: layers, width, mlp or vocabulary.",
        )


def require_training_memory(architecture: Architecture, parameters: TrainingParameters, device: str) -> None:
    """Raise KeyholeError (out_of_memory) where a training step needs more than the whole device has."""
    sharing = parameters.processes if device == "cpu" else 1  # on GPUs each process has one
    needed, there = training_bytes(architecture, parameters) * sharing, device_bytes(device)
    if needed <= there:
        return
    together = f" in {sharing} processes" if sharing > 1 else ""
    asked = f"batch {parameters.batch:,}"
    if _sequences_per_pass(parameters) < parameters.batch:
        asked += f", of which a step's share fills {_sequences_per_pass(parameters):,}"
    raise KeyholeError(
        ErrorCode.OUT_OF_MEMORY,
        f"A training step with {asked}, and length {parameters.length:,} takes about {needed:,} bytes{together}; "
        f"{device} has {there:,}.",
        "Lower batch: gradients are added up to the step's sequences all the same. If that is not enough, lower length "
        "or make the model smaller.",
    )


def _sequences_per_pass(parameters: TrainingParameters) -> int:
    """The most that one process has in a pass: no more than its share of a step."""
    return min(parameters.batch, parameters.sequences_per_step // parameters.processes)
