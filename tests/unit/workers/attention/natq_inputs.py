"""Random attention inputs of every kind that NATQ handles, and the gradient that attention gives their queries."""

from dataclasses import replace

import torch
from torch import Tensor

from workers.attention.inputs import AttentionInputs
from workers.attention.softmax import attend

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "shared keys": {"kv_heads": 2},
    "window": {"window": 4},
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"kv_heads": 2, "window": 4, "softcap": 1.5, "sinks": True},
    "padding": {"padded": 3},
    "masks by head": {"kv_heads": 2, "by_head": True},
}


def attention_inputs(
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    length: int = 13,
    d: int = 6,
    scaling: float = 0.7,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    padded: int = 0,
    by_head: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> AttentionInputs:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    mask = None
    if window is not None or padded or by_head:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = ((distance >= 0) & (distance < (window or length)))[None, None]
    if padded:  # the second sequence begins late; rows before see no key at all
        mask = mask.repeat(batch, 1, 1, 1)
        mask[1, :, :, :padded] = False
    if by_head:
        mask = mask.repeat(batch, heads, 1, 1) & (torch.rand(batch, heads, length, length, generator=generator) > 0.3)
        mask |= torch.eye(length, dtype=torch.bool)
    return AttentionInputs(
        layer=3,
        query=draw(batch, heads, length, d),
        key=draw(batch, kv_heads, length, d),
        value=draw(batch, kv_heads, length, d),
        scaling=scaling,
        mask=mask,
        softcap=softcap,
        sinks=draw(heads) if sinks else None,
    )


def detached(inputs: AttentionInputs) -> AttentionInputs:
    return replace(
        inputs,
        query=inputs.query.detach(),
        key=inputs.key.detach(),
        value=inputs.value.detach(),
        sinks=None if inputs.sinks is None else inputs.sinks.detach(),
    )


def visible(inputs: AttentionInputs) -> Tensor:
    """[batch, head, query, key]: True where the key is in the row."""
    length = inputs.query.shape[2]
    mask = torch.ones(length, length, dtype=torch.bool).tril() if inputs.mask is None else inputs.mask
    return mask.expand(*inputs.query.shape[:3], length)


def query_gradient(inputs: AttentionInputs, seed: int = 1) -> Tensor:
    """∂L/∂q of a random linear loss of the head outputs."""
    output = attend(inputs)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(output, inputs.query, direction.to(output.dtype))
    return gradient
