"""Shared and sigmoid routing against the formulas written with the whole pattern, and their gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.contracts.errors import ErrorCode, KeyholeError
from workers.attention import rows
from workers.attention.inputs import AttentionInputs
from workers.attention.shared import shared_route, softmax_by_blocks
from workers.attention.sigmoid import sigmoid_route
from workers.attention.softmax import softmax_route

LENGTH = 11
HEADS = 6
VARIANTS = {
    "plain": {},
    "window": {"window": 4},
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": True},
    "all": {"window": 4, "softcap": 1.5, "sinks": True},
    "no groups": {"kv_heads": 6},
    "one group": {"kv_heads": 1},
}
ROUTES = {
    "shared_softmax": shared_route,
    "sigmoid": sigmoid_route(-0.7),
    "shared_sigmoid": sigmoid_route(-0.7, shared=True),
    "sigmoid by row": sigmoid_route(),
    "softmax": softmax_by_blocks,
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
every_route = pytest.mark.parametrize("name", ROUTES)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of queries, also in rows as short as these."""
    monkeypatch.setattr(rows, "CPU_BLOCK", 200)


def _inputs(
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    kv_heads: int = 2,
    heads: int = HEADS,
    length: int = LENGTH,
    batch: int = 2,
) -> AttentionInputs:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    mask = None
    if window is not None:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = ((distance >= 0) & (distance < window))[None, None]
    return AttentionInputs(
        layer=0,
        query=draw(batch, heads, length, 4),
        key=draw(batch, kv_heads, length, 4),
        value=draw(batch, kv_heads, length, 3),
        scaling=0.7,
        mask=mask,
        softcap=softcap,
        sinks=draw(heads) if sinks else None,
    )


def _whole_pattern(inputs: AttentionInputs, name: str) -> Tensor:
    """Equations 34-36 and 38, one head and one query after another."""
    batch, heads, length = inputs.query.shape[:3]
    group = heads // inputs.key.shape[1]
    scores = torch.empty(batch, heads, length, length, dtype=torch.float64)
    for head in range(heads):
        scores[:, head] = inputs.scaling * inputs.query[:, head] @ inputs.key[:, head // group].mT
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    sinks = inputs.sinks
    if name.startswith("shared"):
        scores = (sum(scores[:, head] for head in range(heads)) / heads)[:, None].expand(-1, heads, -1, -1)
        sinks = None if sinks is None else sinks.sum().expand(heads) / heads
    output = torch.zeros(batch, heads, length, inputs.value.shape[-1], dtype=torch.float64)
    for head in range(heads):
        for query in range(length):
            keys = [key for key in range(query + 1) if inputs.mask is None or inputs.mask[0, 0, query, key]]
            row = scores[:, head, query, keys]
            if "softmax" in name:
                total = row.exp().sum(-1, keepdim=True) + (0 if sinks is None else sinks[head].exp())
                weights = row.exp() / total
            else:
                weights = 1 / (1 + torch.exp(-row) * (len(keys) if name == "sigmoid by row" else math.exp(0.7)))
            for number, key in enumerate(keys):
                output[:, head, query] += weights[:, number, None] * inputs.value[:, head // group, key]
    return output


@every_variant
@every_route
def test_outputs_equal_the_formulas(name: str, variant: dict) -> None:
    inputs = _inputs(**variant)
    with torch.no_grad():
        torch.testing.assert_close(
            ROUTES[name](inputs, "sequence"), _whole_pattern(inputs, name), rtol=1e-9, atol=1e-10
        )


@every_variant
@pytest.mark.parametrize("name", ["shared_softmax", "shared_sigmoid"])
def test_gradients_equal_those_of_the_formulas(name: str, variant: dict) -> None:
    inputs = _inputs(**variant)
    taken = [inputs.query, inputs.key, inputs.value]
    if inputs.sinks is not None and "softmax" in name:
        taken.append(inputs.sinks)
    credit = torch.randn(2, HEADS, LENGTH, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = torch.autograd.grad(ROUTES[name](inputs, "sequence"), taken, credit)
    expected = torch.autograd.grad(_whole_pattern(inputs, name), taken, credit)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_a_learned_bias_gets_its_gradient() -> None:
    inputs = _inputs(heads=2, kv_heads=1, length=4, batch=1)
    bias = torch.tensor(-0.3, dtype=torch.float64, requires_grad=True)

    def attend(bias: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        call = AttentionInputs(0, query, key, value, inputs.scaling, None, None, None)
        return sigmoid_route(bias, shared=True)(call, "sequence")

    assert torch.autograd.gradcheck(attend, (bias, inputs.query, inputs.key, inputs.value))


@pytest.mark.parametrize("variant", [{}, {"window": 4}, {"softcap": 1.5, "sinks": True}], ids=str)
def test_sharing_changes_nothing_where_there_is_one_head(variant: dict) -> None:
    inputs = _inputs(**variant, heads=1, kv_heads=1)
    with torch.no_grad():
        expected = softmax_route(inputs, "sequence")
        torch.testing.assert_close(shared_route(inputs, "sequence"), expected, rtol=1e-9, atol=1e-10)


def test_sharing_changes_nothing_where_all_heads_score_alike() -> None:
    inputs = _inputs(kv_heads=1)
    alike = AttentionInputs(
        0, inputs.query[:, :1].expand(-1, HEADS, -1, -1), inputs.key, inputs.value, 0.7, None, None, None
    )
    with torch.no_grad():
        torch.testing.assert_close(shared_route(alike, "sequence"), softmax_route(alike, "sequence"))


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation made, on the way forward or back."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple) else (result,)
        sizes = [tensor.untyped_storage().nbytes() // 8 for tensor in made if isinstance(tensor, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


@pytest.mark.parametrize("route", [shared_route, sigmoid_route()], ids=["shared_softmax", "sigmoid"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_no_pass_holds_more_than_a_block_of_rows(route: Callable, softcap: float | None, monkeypatch) -> None:
    length, block = 192, 2**13
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    inputs = _inputs(softcap=softcap, length=length, batch=1)
    with LargestTensor() as watched:
        route(inputs, "sequence").sum().backward()
    assert watched.elements <= block < length * length / 4


@pytest.mark.parametrize("name", ["shared_softmax", "sigmoid", "shared_sigmoid"])
def test_own_token_credit_is_refused(name: str) -> None:
    with pytest.raises(KeyholeError, match="own_token") as failure:
        ROUTES[name](_inputs(), "own_token")
    assert failure.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_heads_that_see_different_keys_cannot_share_a_pattern() -> None:
    inputs = _inputs()
    mask = torch.ones(1, HEADS, LENGTH, LENGTH, dtype=torch.bool).tril()
    apart = AttentionInputs(0, inputs.query, inputs.key, inputs.value, 0.7, mask, None, None)
    with pytest.raises(KeyholeError, match="masks each of its heads"):
        shared_route(apart, "sequence")
