"""Shared routing: all heads of a layer use one pattern, that of their averaged scores.

    s̄_ij = (1/H) Σ_h s_hij        ā_i = softmax over the row of s̄_i        ȳ_hi = Σ_j ā_ij v_hj

equations 34–36 of "Stuck in a Loop" (https://hyperstition.cc/stuck-in-a-loop). Scores are those that enter the softmax,
so a soft cap comes before the average. A sink is one more score of the row: sinks are averaged too, so that every head
has the same weights. Rows keep their length, under sliding windows too.

Without a soft cap the average is a dot product again: with the queries of the heads that share key/value head g summed,

    s̄_ij = (c/H) Σ_g (Σ_{h in g} q_hi)·k_gj

so the layer is one head with the key/value heads' vectors side by side. Its cost is that of the key/value heads, not of
the query heads, in float32 or better. Differentiable; the backward pass recomputes one block of rows at a time
(``workers/attention/blocks.py``).
"""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit
from workers.attention import rows
from workers.attention.blocks import Weigh, attend_by_blocks, require_one_mask, side_by_side, softmax_weights
from workers.attention.inputs import AttentionInputs
from workers.attention.softmax import attend


def shared_route(inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
    """Head outputs ȳ under the shared pattern; raises KeyholeError where heads differ in their masks."""
    require_sequence_credit(credit)
    return attend_alike(inputs, softmax_weights)


def fused_shared_route(inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
    """The same by a fused kernel, in the dtype of the values, where there is no soft cap: for training."""
    require_sequence_credit(credit)
    if inputs.softcap is not None or inputs.sinks is not None:
        return attend_alike(inputs, softmax_weights)
    joined = as_one_head(inputs)
    dtype = inputs.value.dtype
    fused = replace(joined, query=joined.query.to(dtype), key=joined.key.to(dtype), value=joined.value.to(dtype))
    return _to_heads(attend(fused), inputs)


def attend_alike(inputs: AttentionInputs, weigh: Weigh) -> Float[Tensor, "batch head position d_value"]:
    """Head outputs when ``weigh`` makes one pattern of the averaged scores for all heads."""
    if inputs.softcap is not None:
        return _to_heads(attend_by_blocks(inputs, weigh, average=True), inputs)
    return _to_heads(attend_by_blocks(as_one_head(inputs), weigh), inputs)


def as_one_head(inputs: AttentionInputs) -> AttentionInputs:
    """One head whose scores are the average over all heads, and whose values are all of theirs; no soft cap."""
    assert inputs.softcap is None, "capped scores are no dot products"
    require_one_mask(inputs)
    heads, kv_heads = inputs.query.shape[1], inputs.key.shape[1]
    query = rows.at_least_float32(inputs.query).unflatten(1, (kv_heads, heads // kv_heads)).sum(2)
    return AttentionInputs(
        layer=inputs.layer,
        query=side_by_side(query),
        key=side_by_side(rows.at_least_float32(inputs.key)),
        value=side_by_side(rows.at_least_float32(inputs.value)),
        scaling=inputs.scaling / heads,
        mask=inputs.mask,
        softcap=None,
        sinks=None if inputs.sinks is None else rows.at_least_float32(inputs.sinks).mean(0, keepdim=True),
    )


def _to_heads(
    joined: Float[Tensor, "batch 1 position all_d"], inputs: AttentionInputs
) -> Float[Tensor, "batch head position d_value"]:
    """The one head's output cut into the key/value heads' parts, each given to the heads that share it."""
    heads, kv_heads = inputs.query.shape[1], inputs.value.shape[1]
    parts = joined[:, 0].unflatten(-1, (kv_heads, -1)).transpose(1, 2)
    return parts.repeat_interleave(heads // kv_heads, 1).to(inputs.value.dtype)


def require_sequence_credit(credit: Credit) -> None:
    if credit != "sequence":
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"Credit {credit!r} is not defined for changed routing.",
            "Use credit 'sequence'.",
        )


def softmax_by_blocks(inputs: AttentionInputs, credit: Credit) -> Float[Tensor, "batch head position d_value"]:
    """The model's own attention through the code that changes it: nothing is shared, and nothing should differ."""
    require_sequence_credit(credit)
    return attend_by_blocks(inputs, softmax_weights)
