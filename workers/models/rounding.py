"""Weights rounded to a few bits: each group of neighbouring inputs to evenly spaced levels between its extremes.

Round to nearest, as the simplest quantized formats do it (GGUF's Q4_1 is this with four bits and groups of 32).
"""

import torch
from jaxtyping import Float
from torch import Tensor

GROUP = 32


def rounded(weight: Float[Tensor, "output input"], bits: int) -> Float[Tensor, "output input"]:
    """The nearest of 2 ** bits levels for each weight; the number of inputs must be a multiple of GROUP."""
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    levels = torch.where(step > 0, torch.round((groups - low) / step), 0)
    return (low + levels * step).flatten(-2)
