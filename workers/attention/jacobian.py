"""The Jacobian of one head's output with respect to its query, row by row, in float64.

    J_i = ∂y_i/∂q_i = c Σ_j b_ij (v_j − y_i) k_jᵀ,    b_ij = a_ij (1 − (s_ij / softcap)²)

[d_value, d_key], equation 24 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop), where b = a for want of a
soft cap. A sink takes weight and gives no value: Σ_j a_ij is below 1 and y_i lacks its share, and the formula holds.

Sums over keys are taken from one key of the block, the one with the most weight: where a row has nearly all of its
weight there, J is a small difference, and digits would be lost to that key. Without soft cap and sink
Σ_j b_ij (v_j − y_i) = 0, so keys may be shifted too.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from workers.attention import rows
from workers.attention.inputs import AttentionInputs

# Elements of the weighted keys that one product reads: on a CPU they should stay near its cache (measured on one core
# with 1 MiB of L2, d = 64 and 128: 2**18 best, half and twice that up to a tenth slower); a GPU wants few large
# products (assumed).
CPU_WEIGHTED = 2**18
GPU_WEIGHTED = 2**27


@dataclass(frozen=True)
class Jacobians:
    """Of the queries of a block of one head: J / c, and of the same rows y, the largest weight and the keys in them."""

    unscaled: Float[Tensor, "query d_value d_key"]
    output: Float[Tensor, "query d_value"]
    top_weight: Float[Tensor, " query"]
    keys: Integer[Tensor, " query"]


def of_head(attention: AttentionInputs, sequence: int, head: int) -> AttentionInputs:
    """One head in one sequence of the batch, in float64."""
    kv_head = head // (attention.query.shape[1] // attention.key.shape[1])
    mask = attention.mask
    if mask is not None:
        mask = mask[min(sequence, mask.shape[0] - 1), min(head, mask.shape[1] - 1)][None, None]
    return AttentionInputs(
        layer=attention.layer,
        query=attention.query[None, sequence, None, head].double(),
        key=attention.key[None, sequence, None, kv_head].double(),
        value=attention.value[None, sequence, None, kv_head].double(),
        scaling=attention.scaling,
        mask=mask,
        softcap=attention.softcap,
        sinks=None if attention.sinks is None else attention.sinks[None, head].double(),
    )


def blocks(head: AttentionInputs, queries: range) -> list[range]:
    """Cut query positions into blocks whose Jacobians fit the block size of the device."""
    return list(rows.query_blocks(queries, head, at_least=head.key.shape[-1] * head.value.shape[-1]))


def jacobians(head: AttentionInputs, positions: range) -> Jacobians:
    """Jacobians of the queries at ``positions`` (ascending), for one head of one sequence as ``of_head`` gives it."""
    width = positions[-1] + 1
    hidden = rows.hidden_keys(head, positions, width)
    scores = rows.scores(head, positions, hidden)[0, 0]
    first = _first_visible(hidden, width)
    scores, hidden = scores[:, first:], hidden[0, 0, :, max(0, first - width + hidden.shape[-1]) :]
    key, value = head.key[0, 0, first:width], head.value[0, 0, first:width]

    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp_()
    total = weights.sum(-1, keepdim=True)
    sink = None if head.sinks is None else (head.sinks - largest).exp_()
    if sink is not None:
        total = total + sink
    weights.div_(total)
    factors = weights
    if head.softcap is not None:
        factors = weights * (1 - (scores / head.softcap).square())
        rows.hidden_columns(factors, hidden).masked_fill_(hidden, 0)  # of a score of −∞ there is no slope

    top = weights.sum(0).argmax()
    shift = value[top]
    value = value - shift
    if head.softcap is None and sink is None:
        key = key - key[top]
    output = weights @ value  # Σ a_j (v_j − shift)
    departure = output if sink is None else output - sink / total * shift  # y − shift
    products = _weighted_products(factors, key, value, positions, first)
    products.addcmul_(departure.T[:, :, None], factors @ key, value=-1)
    keys = width - first - hidden.sum(-1)
    return Jacobians(products.transpose(0, 1), departure + shift, weights.amax(-1), keys)


def _weighted_products(
    factors: Float[Tensor, "query key"],
    key: Float[Tensor, "key d_key"],
    value: Float[Tensor, "key d_value"],
    positions: range,
    first: int,
) -> Float[Tensor, "d_value query d_key"]:
    """Σ_j b_ij v_j k_jᵀ: one matrix product serves as many queries as fit, each over no key beyond its last query.

    In this order of the factors MKL reaches 54 to 57 of a core's 58 GFLOP/s; the others tried gave 35 to 50.
    """
    keys, values = key.T.contiguous(), value.T.contiguous()
    products = factors.new_empty(len(values), len(factors), len(keys))
    budget = CPU_WEIGHTED if factors.device.type == "cpu" else GPU_WEIGHTED
    at_once = max(1, budget // (len(keys) * factors.shape[1]))
    for start in range(0, len(factors), at_once):
        part = slice(start, start + at_once)
        width = positions[part][-1] + 1 - first
        weighted = factors[part, None, :width] * keys[:, :width]
        torch.mm(values[:, :width], weighted.flatten(0, 1).T, out=products[:, part].flatten(1))
    return products


def _first_visible(hidden: Bool[Tensor, "masks heads query hidden"], width: int) -> int:
    """The first key that any query of the block sees: not 0 under a sliding window."""
    if hidden.shape[-1] < width:  # only the columns of a causal mask's edge are spoken of
        return 0
    return int((~hidden[0, 0]).any(0).int().argmax())


def largest_rank(found: Jacobians, head: AttentionInputs) -> Integer[Tensor, " query"]:
    """What no rank of J exceeds: the keys of the row, and one less where their weights add up to 1.

    J is a sum of one matrix of rank 1 for each key, and Σ_j a_ij (v_j − y_i) = 0 without a sink.
    """
    rank = found.keys if head.sinks is not None else found.keys - 1
    return rank.clamp_max(min(found.unscaled.shape[1:]))


def singular_values(found: Jacobians, scaling: float) -> Float[Tensor, "query mode"]:
    """σ of every J, largest first, from the eigenvalues of the Gram matrix of its shorter side.

    Squaring loses half of the digits: below about 3e-8 of the largest σ is rounding error.
    """
    j = found.unscaled
    gram = j @ j.mT if j.shape[1] <= j.shape[2] else j.mT @ j
    return torch.linalg.eigvalsh(gram).clamp_min_(0).sqrt_().mul_(abs(scaling)).flip(-1)


def by_autograd(head: AttentionInputs, position: int) -> Float[Tensor, "d_value d_key"]:
    """J of one query by automatic differentiation of the row as the model defines it: the oracle of the above."""
    width = position + 1
    key, value = head.key[0, 0, :width], head.value[0, 0, :width]
    visible = None if head.mask is None else head.mask[0, 0, position, :width]
    with torch.enable_grad():
        # a copy of the query for each component of y, so that one backward pass gives every row of J
        query = head.query[0, 0, position].repeat(value.shape[1], 1).requires_grad_()
        scores = head.scaling * query @ key.T
        if head.softcap is not None:
            scores = head.softcap * torch.tanh(scores / head.softcap)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        if head.sinks is not None:
            scores = torch.cat([scores, head.sinks.expand(len(scores), 1)], -1)
        output = torch.softmax(scores, -1)[:, :width] @ value
        (jacobian,) = torch.autograd.grad(output.diagonal().sum(), query)
    return jacobian
