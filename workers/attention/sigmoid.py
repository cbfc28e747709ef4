"""Sigmoid routing: each key gets its weight by itself, and weights need not add up to 1.

    y_i = Σ_j sigmoid(s_ij + b) v_j

equation 38 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop), per head, or with the scores averaged over
the heads as in ``workers/attention/shared.py``. Scores are those that would enter the softmax: scaled, after a soft
cap. A sink has no part in it: all it does is take weight from keys, and here no key takes any from another.

b is one number, or −log n with n the number of keys in the query's row: then a row of equal scores near 0 has weights
that add up to about 1, as those of softmax do (Ramapuram et al. 2024, https://arxiv.org/abs/2409.04431, who take n the
length of the sequence; that is a number to give).

Differentiable, also with respect to a bias that is a tensor; the backward pass recomputes one block of rows at a time
(``workers/attention/blocks.py``).
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from services.contracts.probes.common import Credit
from workers.attention.blocks import attend_by_blocks
from workers.attention.inputs import AttentionInputs
from workers.attention.shared import attend_alike, require_sequence_credit

Bias = float | Tensor | Literal["row_length"]


def sigmoid_route(bias: Bias = "row_length", *, shared: bool = False) -> Callable[[AttentionInputs, Credit], Tensor]:
    """A route of the seam: head outputs under sigmoid weights, with scores per head or ``shared`` by all heads."""

    def weigh(scores: Float[Tensor, "batch head query key"], sinks: object) -> Float[Tensor, "batch head query key"]:
        return torch.sigmoid(scores + (-row_lengths(scores).log() if isinstance(bias, str) else bias))

    def route(inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
        require_sequence_credit(credit)
        return attend_alike(inputs, weigh) if shared else attend_by_blocks(inputs, weigh)

    return route


def row_lengths(scores: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch 1 query 1"]:
    """How many keys each row has; all heads see the same ones."""
    return (scores[:, :1] > -torch.inf).sum(-1, keepdim=True).to(scores.dtype)
