"""NATQ's query gradients against Fisher matrices by autograd and NumPy's solve; what it leaves alone and survives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.workers import natq_reference
from tests.unit.workers.attention.natq_inputs import KINDS, attention_inputs, detached, query_gradient, visible
from workers.attention import natq_rows, rows
from workers.attention.inputs import AttentionInputs
from workers.attention.natq import Report, Solver, natural_gradient, transform
from workers.attention.softmax import softmax_route

EXACT = Solver("exact")
CG = Solver("cg", tolerance=1e-9, iterations=200)  # far more steps than a row has dimensions
SOLVERS = pytest.mark.parametrize("solver", [EXACT, CG], ids=["exact", "cg"])


def _reference(inputs: AttentionInputs, gradient: Tensor, damping: float = 0.1) -> Tensor:
    return natq_reference.natural_gradients(
        inputs.query,
        inputs.key,
        gradient,
        inputs.scaling,
        visible(inputs),
        damping=damping,
        softcap=inputs.softcap,
        sinks=inputs.sinks,
    )


def _relative(found: Tensor, expected: Tensor) -> Tensor:
    """‖difference‖ / ‖expected‖ by row; 0 where both are 0."""
    difference, size = (found.double() - expected).norm(dim=-1), expected.norm(dim=-1)
    return torch.where(difference == 0, 0, difference / size)


@pytest.fixture(params=[1, 60, 2**18], ids=["single rows", "small blocks", "one block"])
def block_size(request, monkeypatch) -> int:
    monkeypatch.setattr(rows, "CPU_BLOCK", request.param)
    return request.param


@SOLVERS
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_that_of_brute_force(kind: str, solver: Solver, block_size: int) -> None:
    inputs = attention_inputs(**KINDS[kind])
    gradient = query_gradient(inputs)
    found, _ = natural_gradient(detached(inputs), gradient, solver)
    # float64 throughout, matrices with a condition below 100: all digits but four
    assert _relative(found, _reference(inputs, gradient)).max() < 1e-7


@SOLVERS
@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_how_they_are_cut_into_blocks(kind: str, solver: Solver, monkeypatch) -> None:
    inputs = detached(attention_inputs(**KINDS[kind], dtype=torch.float32))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(2))
    solver = replace(solver, tolerance=1e-5)
    found = []
    for queries, size in ((128, 2**18), (2, 2**18), (5, 100), (1, 1)):
        monkeypatch.setattr(natq_rows, "CPU_QUERIES", queries)
        monkeypatch.setattr(rows, "CPU_BLOCK", size)
        found.append(natural_gradient(inputs, gradient, solver)[0])
    for other in found[1:]:
        # products of float32 add up in another order, and a row may stop a step sooner
        assert _relative(other, found[0].double()).max() < 1e-4


@SOLVERS
@pytest.mark.parametrize("damping", [1e-3, 0.1, 30.0])
def test_damping_is_in_units_of_the_mean_eigenvalue(damping: float, solver: Solver) -> None:
    inputs = attention_inputs(length=9)
    gradient = query_gradient(inputs)
    found, _ = natural_gradient(detached(inputs), gradient, replace(solver, damping=damping))
    assert _relative(found, _reference(inputs, gradient, damping)).max() < 1e-6


@SOLVERS
def test_it_is_the_ridge_regression_of_advantages_on_keys(solver: Solver) -> None:
    """g_i = c Σ_j a_ij α_ij (k_j − k̄_i), α the advantage of a key: so (F_i + λ_i)⁻¹ g_i regresses α on c (k − k̄)."""
    inputs = attention_inputs(batch=1, heads=2, kv_heads=2, length=20)
    output = softmax_route(inputs, "sequence")
    delta = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    (gradient,) = torch.autograd.grad(output, inputs.query, delta)
    found, _ = natural_gradient(detached(inputs), gradient, solver)
    query, key, value, y, delta = (
        tensor.detach()[0].numpy() for tensor in (inputs.query, inputs.key, inputs.value, output, delta)
    )
    for head, position in ((0, 19), (1, 12), (1, 3)):
        keys, values = key[head, : position + 1], value[head, : position + 1]
        weights = np.exp(inputs.scaling * keys @ query[head, position])
        weights /= weights.sum()
        centred = inputs.scaling * (keys - weights @ keys)
        root = np.sqrt(weights)
        damping = 0.1 * (weights @ np.square(centred)).sum() / keys.shape[1]
        advantage = (values - y[head, position]) @ delta[head, position]
        left = np.concatenate([root[:, None] * centred, np.sqrt(damping) * np.eye(keys.shape[1])])
        right = np.concatenate([root * advantage, np.zeros(keys.shape[1])])
        x = np.linalg.lstsq(left, right, rcond=None)[0]
        cosine = x @ found[0, head, position].numpy() / np.linalg.norm(x) / found[0, head, position].norm().item()
        assert cosine == pytest.approx(1, abs=1e-10)


@SOLVERS
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_queries_get_another_gradient(kind: str, solver: Solver) -> None:
    """Keys, values and sinks get theirs bit for bit, and the output is the same bit for bit."""
    inputs = attention_inputs(**KINDS[kind], dtype=torch.float32)
    leaves = [inputs.key, inputs.value, *([] if inputs.sinks is None else [inputs.sinks]), inputs.query]
    plain = softmax_route(inputs, "sequence")
    changed = softmax_route(replace(inputs, query=transform(inputs, solver)), "sequence")
    assert torch.equal(plain, changed)
    direction = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    *expected, query_before = torch.autograd.grad(plain, leaves, direction)
    *found, query_after = torch.autograd.grad(changed, leaves, direction)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not torch.allclose(query_before, query_after)
    torch.testing.assert_close(query_after.norm(dim=-1), query_before.norm(dim=-1), rtol=1e-5, atol=1e-6)


@given(
    st.integers(0, 10_000),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.sampled_from(["exact", "cg"]),
    st.sampled_from(list(KINDS)),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    st.sampled_from([1e-30, 1.0, 1e30]),
    st.sampled_from(["random", "one key", "repeated keys", "two keys", "large mean"]),
)
@settings(max_examples=80, deadline=None)
def test_norms_are_kept_and_nothing_is_ever_not_a_number(
    seed: int, dtype: torch.dtype, method: str, kind: str, sharpness: float, size: float, keys: str
) -> None:
    """Through rows with all weight on one key, singular and zero Fisher matrices, scores of any size, and zero rows."""
    inputs = detached(attention_inputs(**KINDS[kind], seed=seed))
    key = inputs.key
    if keys == "one key":
        key = key[:, :, :1].expand_as(key)
    elif keys == "repeated keys":
        key = key.repeat_interleave(3, 2)[:, :, : key.shape[2]]
    elif keys == "two keys":
        key = torch.cat([key[:, :, :1], key[:, :, 1:2].expand_as(key[:, :, 1:])], 2)
    elif keys == "large mean":
        key = key + 100
    inputs = replace(inputs, query=(inputs.query * sharpness).to(dtype), key=key.to(dtype))
    if inputs.sinks is not None:
        inputs = replace(inputs, sinks=inputs.sinks.to(dtype))
    gradient = (torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(seed)) * size).to(dtype)
    gradient[:, :, 5] = 0
    found, report = natural_gradient(inputs, gradient, Solver(method))
    assert found.isfinite().all() and report.residual.isfinite().all()
    assert not found[:, :, 5].any() and report.zero[:, :, 5].all()
    unit = (gradient.double() / size).norm(dim=-1)
    # bfloat16 keeps eight bits, and a norm is over six numbers
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close((found.double() / size).norm(dim=-1), unit, rtol=tolerance, atol=0)


@given(st.integers(0, 10_000), st.floats(-8, 8), st.floats(-8, 8), st.sampled_from(["exact", "cg"]))
@settings(max_examples=30, deadline=None)
def test_the_unit_of_the_fisher_matrix_and_that_of_the_loss_drop_out(
    seed: int, log2_scale: float, log2_loss: float, method: str
) -> None:
    """Keys times s and queries over s: the same rows, and F times s². A loss times t: g̃ times t."""
    inputs = detached(attention_inputs(seed=seed))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, _ = natural_gradient(inputs, gradient, Solver(method))
    scale, loss = 2**log2_scale, 2**log2_loss
    scaled = replace(inputs, key=inputs.key * scale, query=inputs.query / scale)
    found, _ = natural_gradient(scaled, gradient * loss, Solver(method))
    torch.testing.assert_close(found / loss, expected, rtol=1e-7, atol=1e-9)


@SOLVERS
def test_a_row_of_one_key_or_of_equal_keys_keeps_its_gradient(solver: Solver) -> None:
    inputs = detached(attention_inputs(dtype=torch.float32))
    inputs = replace(inputs, key=inputs.key[:, :, :1].expand_as(inputs.key).contiguous())
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(4))
    found, report = natural_gradient(inputs, gradient, solver)
    assert torch.equal(found[:, :, 0], gradient[:, :, 0])
    assert report.zero[:, :, 0].all()
    assert found.isfinite().all()


@SOLVERS
@pytest.mark.parametrize("rest", [1e-3, 1e-6, 1e-9, 1e-20])
def test_float32_solves_rows_with_nearly_all_weight_on_one_key(rest: float, solver: Solver) -> None:
    """Where F is computed as a difference, float32 has nothing left of it at a rest of 1e-7."""
    inputs = detached(attention_inputs(batch=1, heads=1, kv_heads=1, length=40, d=8))
    query = torch.zeros_like(inputs.query)
    key = inputs.key / 4
    query[..., 0], key[..., 0] = -np.log(rest) / 0.7, 0
    key[:, :, 2, 0] = 1  # every row from 2 on has all but about 40 ``rest`` there
    inputs = replace(inputs, query=query, key=key + 3)
    gradient = torch.randn(query.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = _reference(inputs, gradient)
    single = replace(inputs, query=inputs.query.float(), key=inputs.key.float())
    found, report = natural_gradient(single, gradient.float(), replace(solver, tolerance=1e-4))
    assert not report.zero[:, :, 3:].any()
    # scores of up to 70 are rounded to 4e-6, weights by as much; matrices with a condition of about 100
    assert _relative(found, expected)[:, :, 3:].max() < 1e-3


def test_conjugate_gradients_agree_with_the_exact_solution_to_the_tolerance() -> None:
    inputs = detached(attention_inputs(length=150, d=16, dtype=torch.float32))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(6))
    double = replace(inputs, query=inputs.query.double(), key=inputs.key.double(), value=inputs.value.double())
    exact, _ = natural_gradient(double, gradient.double(), EXACT)
    for tolerance in (0.3, 0.03, 1e-3, 1e-4):
        found, report = natural_gradient(
            inputs, gradient, Solver("cg", tolerance=tolerance, iterations=100, fallback=False)
        )
        assert not report.unfinished.any()
        assert report.residual.max() <= tolerance
        # ‖x − x*‖ ≤ tolerance ‖x‖; both then get the same norm, which may double it
        assert _relative(found, exact).max() < 2 * tolerance


@pytest.mark.parametrize("fallback", [True, False])
def test_rows_that_do_not_converge_are_counted_and_solved_exactly_if_asked(fallback: bool) -> None:
    inputs = detached(attention_inputs(length=60, d=16))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    solver = Solver("cg", tolerance=1e-6, iterations=5, fallback=fallback)
    found, report = natural_gradient(inputs, gradient, solver)
    error = _relative(found, natural_gradient(inputs, gradient, EXACT)[0])
    solved = ~report.unfinished
    assert solved[:, :, 1:5].all()  # F of n keys has n − 1 eigenvalues and 0: n steps
    assert report.unfinished[:, :, 30:].all()
    assert error[solved].max() < 2e-6
    assert (error[report.unfinished].max() < 1e-10) == fallback
    assert (report.residual.max() < 1e-6) == fallback


@SOLVERS
def test_a_gradient_that_is_not_finite_is_handed_on_and_stays_in_its_row(solver: Solver) -> None:
    inputs = detached(attention_inputs(dtype=torch.float32))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(8))
    expected, _ = natural_gradient(inputs, gradient, replace(solver, tolerance=1e-4))
    gradient[0, 1, 7, 2] = torch.nan
    gradient[1, 0, 9, 0] = torch.inf
    found, _ = natural_gradient(inputs, gradient, replace(solver, tolerance=1e-4))
    bad = ~gradient.isfinite().all(-1)
    assert torch.equal(found[bad].nan_to_num(), gradient[bad].nan_to_num())
    torch.testing.assert_close(found[~bad], expected[~bad])


def test_bfloat16_is_solved_in_float32() -> None:
    inputs = detached(attention_inputs(dtype=torch.bfloat16))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(9)).bfloat16()
    found, _ = natural_gradient(inputs, gradient, EXACT)
    assert found.dtype == torch.bfloat16
    # the reference gets the same rounded numbers; the result is rounded once, to 8 bits
    assert _relative(found, _reference(inputs, gradient)).max() < 4e-3


@SOLVERS
def test_autocast_does_not_reach_the_solver(solver: Solver) -> None:
    inputs = detached(attention_inputs(dtype=torch.float32, length=30))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(10))
    expected, _ = natural_gradient(inputs, gradient, replace(solver, tolerance=1e-4))
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = natural_gradient(inputs, gradient, replace(solver, tolerance=1e-4))
    assert torch.equal(found, expected)


def test_threads_give_the_same_rows(monkeypatch) -> None:
    monkeypatch.setattr(rows, "CPU_BLOCK", 200)
    inputs = detached(attention_inputs(length=40))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = natural_gradient(inputs, gradient, CG)
        torch.set_num_threads(3)
        found = natural_gradient(inputs, gradient, CG)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1].iterations, expected[1].iterations)


def test_nothing_is_kept_from_the_forward_pass_but_what_attention_keeps() -> None:
    inputs = attention_inputs()
    held: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: held.append(tensor.data_ptr()) or tensor, lambda x: x):
        transform(inputs, EXACT)
    assert sorted(held) == sorted([inputs.query.data_ptr(), inputs.key.data_ptr()])


def test_the_layer_is_told_with_the_report_of_every_row() -> None:
    inputs = attention_inputs()
    told: list[tuple[int, Report]] = []
    output = softmax_route(replace(inputs, query=transform(inputs, CG, lambda *both: told.append(both))), "sequence")
    assert told == []
    output.sum().backward()
    ((layer, report),) = told
    assert layer == 3
    shape = inputs.query.shape[:3]
    assert all(tensor.shape == shape for tensor in vars(report).values())
    assert report.zero[:, :, 0].all() and not report.zero[:, :, 1:].any()


def test_a_gradient_of_the_gradient_is_refused() -> None:
    inputs = attention_inputs()
    output = softmax_route(replace(inputs, query=transform(inputs, EXACT)), "sequence")
    (gradient,) = torch.autograd.grad(output.square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
