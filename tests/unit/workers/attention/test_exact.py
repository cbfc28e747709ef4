"""Exact and own-token attention against autograd of the formulas written with the whole pattern, in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from workers.attention import rows
from workers.attention.exact import exact_attention
from workers.attention.inputs import AttentionInputs
from workers.attention.own_token import own_token_attention
from workers.attention.softmax import attend, softmax_route

LENGTH = 11
VARIANTS = {
    "plain": {},
    "window": {"window": 4},
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"window": 4, "softcap": 1.5, "sinks": True},
}


def _inputs(
    *, window: int | None = None, softcap: float | None = None, sinks: bool = False, d_value: int = 5, kv_heads: int = 2
) -> AttentionInputs:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    mask = None
    if window is not None:
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        mask = ((distance >= 0) & (distance < window))[None, None]
    return AttentionInputs(
        layer=0,
        query=draw(2, 6, LENGTH, 5),
        key=draw(2, kv_heads, LENGTH, 5),
        value=draw(2, kv_heads, LENGTH, d_value),
        scaling=0.7,
        mask=mask,
        softcap=softcap,
        sinks=draw(6) if sinks else None,
    )


def _whole_pattern(inputs: AttentionInputs, *, own_token: bool = False) -> Tensor:
    """y = Σ_j a_ij v_j; with constants off the diagonal, as math of own-token credit says, if ``own_token``."""
    groups = inputs.query.shape[1] // inputs.key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (inputs.key, inputs.value))
    scores = inputs.query @ key.mT * inputs.scaling
    if own_token:
        constant = inputs.query @ key.detach().mT * inputs.scaling
        scores = torch.where(torch.eye(LENGTH, dtype=torch.bool), scores, constant)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if inputs.mask is None else inputs.mask
    scores = scores.masked_fill(~mask, -torch.inf)
    if inputs.sinks is not None:
        scores = torch.cat([scores, inputs.sinks[None, :, None, None].expand(2, -1, LENGTH, 1)], -1)
    pattern = scores.softmax(-1)[..., :LENGTH]
    if not own_token:
        return pattern @ value
    diagonal = pattern.diagonal(dim1=-2, dim2=-1)[..., None]
    return pattern @ value.detach() + diagonal * (value - value.detach())


def _gradients(output: Tensor, inputs: AttentionInputs, *, sinks: bool = True) -> tuple[Tensor, ...]:
    leaves = [inputs.query, inputs.key, inputs.value]
    if sinks and inputs.sinks is not None:
        leaves.append(inputs.sinks)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad(output, leaves, direction)


@pytest.fixture(params=[1, 200, 2**19], ids=["single rows", "small blocks", "one block"])
def block_size(request, monkeypatch) -> int:
    monkeypatch.setattr(rows, "CPU_BLOCK", request.param)
    return request.param


@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_attention_and_its_gradients_equal_autograd(variant: str, block_size: int) -> None:
    inputs = _inputs(**VARIANTS[variant])
    expected, found = _whole_pattern(inputs), exact_attention(inputs)
    torch.testing.assert_close(found, expected)
    for one, other in zip(_gradients(found, inputs), _gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("d_value", [3, 5, 8], ids=["narrower values", "equal widths", "wider values"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6], ids=["multi-query", "grouped", "one each"])
@pytest.mark.parametrize("variant", ["plain", "window"])
def test_fused_attention_equals_the_whole_pattern(variant: str, kv_heads: int, d_value: int) -> None:
    inputs = _inputs(**VARIANTS[variant], kv_heads=kv_heads, d_value=d_value)
    torch.testing.assert_close(attend(inputs), _whole_pattern(inputs))


@pytest.mark.parametrize("variant", VARIANTS)
def test_own_token_gradients_are_those_with_constants_off_the_diagonal(variant: str, block_size: int) -> None:
    inputs = _inputs(**VARIANTS[variant])
    found, expected = softmax_route(inputs, "own_token"), _whole_pattern(inputs, own_token=True)
    torch.testing.assert_close(found, expected)
    gradients = _gradients(found, inputs, sinks=False), _gradients(expected, inputs, sinks=False)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_own_token_credit_does_not_change_the_output() -> None:
    inputs = _inputs()
    assert torch.equal(own_token_attention(inputs, attend), attend(inputs))


def test_exact_attention_in_bfloat16_rounds_only_inputs_and_output() -> None:
    inputs = _inputs(softcap=1.5, sinks=True)
    rounded = replace(
        inputs, **{name: getattr(inputs, name).detach().bfloat16() for name in ("query", "key", "value", "sinks")}
    )
    exact = replace(inputs, **{name: getattr(rounded, name).double() for name in ("query", "key", "value", "sinks")})
    torch.testing.assert_close(exact_attention(rounded).double(), _whole_pattern(exact), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("positions", [range(11), range(3, 11, 4), range(10, 11)])
def test_blocks_cover_the_positions_in_order_and_keep_to_their_size(positions: range, block_size: int) -> None:
    inputs = _inputs()
    blocks = list(rows.query_blocks(positions, inputs))
    assert [position for block in blocks for position in block] == list(positions)
    for block in blocks:
        assert len(block) == 1 or 2 * 6 * len(block) * (block[-1] + 1) <= block_size
