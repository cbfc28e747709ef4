"""How well a model predicts held-out text."""

import math

import numpy as np
import torch
from torch import nn

from workers.training.loop import arithmetic, loss_sum, micro_batches, predicted
from workers.training.ranks import Ranks


@torch.no_grad()
def validation_loss_nats(
    model: nn.Module, sequences: np.ndarray, *, batch: int, device: str, dtype: str, ranks: Ranks
) -> float:
    """Mean loss over all predicted tokens of ``sequences`` [sequence, position], in the arithmetic of the run."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for token_ids in micro_batches(ranks.share(sequences), batch, device):
        with arithmetic(device, dtype):
            total += loss_sum(model, token_ids).double()
    if ranks.world > 1:
        ranks.sum_([total])
    return float(total) / predicted(sequences)


def bits_per_byte(loss_nats: float, tokens: int, text_bytes: int) -> float:
    """Bits that the model needs for a byte of the text: comparable between tokenizers, unlike the loss of a token.

    ``tokens`` have the mean loss ``loss_nats``; ``text_bytes`` is the length of their text in UTF-8.
    """
    return loss_nats * tokens / (math.log(2) * text_bytes)
