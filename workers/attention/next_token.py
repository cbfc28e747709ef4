"""Next-token losses and their gradient at the logits, written over the logits.

A model's logits are the largest tensor of a pass (1,024 tokens of 49,152 logits: 200 MB in float32). Autograd would
keep the log-softmax beside them and make the gradient a third; here softmax minus one-hot takes the place of the
logits, a few rows at a time.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from services.contracts.probes.common import Credit
from workers.attention.rows import at_least_float32

CHUNK = 2**19  # logits handled at once; measured: all at once takes 2.4 times as long, torch's cross-entropy 6 times


def next_token_losses_(
    logits: Float[Tensor, "sequence position token"], token_ids: Int[Tensor, "sequence position"], credit: Credit
) -> tuple[Float[Tensor, "sequence predicted"], Float[Tensor, "sequence position token"]]:
    """Losses in nats of predicting each next token, and the gradient of their total at the logits.

    The total is, for credit "sequence", each sequence's mean, and for "own_token" each sequence's sum; totals of the
    sequences are added, so that they do not weigh on each other. The last position predicts nothing: its gradient is 0.
    The gradient is in the memory of ``logits``, which are lost; give it to ``torch.autograd.backward(logits, …)``.
    """
    sequences, length, vocabulary = logits.shape
    weights = torch.ones(sequences, length, device=logits.device)
    if credit == "sequence":
        weights /= length - 1
    weights[:, -1] = 0
    targets = token_ids.roll(-1, 1).reshape(-1, 1)
    weights = weights.reshape(-1, 1)
    flat = logits.detach().reshape(-1, vocabulary)
    losses = torch.empty(len(flat), dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
    rows = max(1, CHUNK // vocabulary)
    for first in range(0, len(flat), rows):
        part = slice(first, first + rows)
        values = at_least_float32(flat[part])
        normalizers = values.logsumexp(-1, keepdim=True)
        losses[part] = (normalizers - values.gather(1, targets[part]))[:, 0]
        values.sub_(normalizers).exp_().mul_(weights[part])
        values.scatter_add_(1, targets[part], -weights[part].to(values.dtype))
        if values.dtype != flat.dtype:
            flat[part] = values.to(flat.dtype)
    return losses.view(sequences, length)[:, :-1], flat.view(sequences, length, vocabulary)


def token_losses(
    logits: Float[Tensor, "sequence query token"], targets: Int[Tensor, "sequence query"]
) -> Float[Tensor, "sequence query"]:
    """Losses in nats of predicting ``targets``, a few rows at a time; no gradient."""
    flat, wanted = logits.detach().flatten(0, 1), targets.reshape(-1, 1)
    losses = torch.empty(len(flat), dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
    rows = max(1, CHUNK // logits.shape[-1])
    for first in range(0, len(flat), rows):
        part = slice(first, first + rows)
        values = at_least_float32(flat[part])
        losses[part] = values.logsumexp(-1) - values.gather(1, wanted[part])[:, 0]
    return losses.view(targets.shape)
