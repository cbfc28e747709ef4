"""One step: passes over micro-batches whose gradients add up, clipping, the update.

The loss of a step is the mean over all tokens it predicts, however they are cut into passes and shared by processes:
each pass adds its sum of losses divided by the number of the whole step's.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from workers.training.ranks import Ranks

_NO_TARGET = -100  # cross_entropy leaves these out


@dataclass(frozen=True)
class Taken:
    """What a step was: scalars on the device, so that asking for them is the caller's choice of when to wait."""

    loss_nats: Float[Tensor, ""]  # mean over the step's tokens, before the update
    gradient_norm: Float[Tensor, ""]  # before clipping


def arithmetic(device: str, dtype: str) -> AbstractContextManager[Any]:
    """Autocast for bfloat16 passes of float32 weights; nothing for float32."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device, getattr(torch, dtype))


def micro_batches(sequences: np.ndarray, batch: int, device: str) -> Iterator[Int[Tensor, "batch position"]]:
    """The sequences in passes of at most ``batch``, on the device."""
    for first in range(0, len(sequences), batch):
        part = np.ascontiguousarray(sequences[first : first + batch], dtype=np.int64)
        yield torch.from_numpy(part).to(device, non_blocking=True)


def loss_sum(model: nn.Module, token_ids: Int[Tensor, "batch position"]) -> Float[Tensor, ""]:
    """Sum of −log p over the predicted tokens, all but each sequence's first; in nats, in float32."""
    logits = model(input_ids=token_ids, use_cache=False).logits
    targets = F.pad(token_ids[:, 1:], (0, 1), value=_NO_TARGET)  # no copy of the logits without their last position
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET, reduction="sum")


def predicted(sequences: np.ndarray) -> int:
    """How many tokens are predicted in these sequences."""
    return sequences.shape[0] * (sequences.shape[1] - 1)


def accumulate(
    model: nn.Module,
    parameters: list[nn.Parameter],
    sequences: np.ndarray,
    *,
    batch: int,
    device: str,
    dtype: str,
    ranks: Ranks,
) -> Float[Tensor, ""]:
    """Set the gradients to those of the mean loss over all ``sequences`` of the step; returns that loss.

    ``sequences`` [sequence, position] are those of all processes; each computes its share.
    """
    for parameter in parameters:
        parameter.grad = None
    tokens = predicted(sequences)
    total = torch.zeros((), device=device)
    for token_ids in micro_batches(ranks.share(sequences), batch, device):
        with arithmetic(device, dtype):
            loss = loss_sum(model, token_ids) / tokens
        loss.backward()
        total += loss.detach()
    if ranks.world > 1:
        ranks.sum_([total, *(parameter.grad for parameter in parameters if parameter.grad is not None)])
    return total


def clipped(parameters: list[nn.Parameter], limit: float | None) -> Float[Tensor, ""]:
    """Scale the gradients down to the norm ``limit`` where they are beyond it; returns their norm before."""
    return nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit, foreach=True)
