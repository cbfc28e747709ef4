"""Conjugate gradients on blocks of rows: each row stops by itself, and what happens in one row stays there."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.unit.workers.attention.natq_inputs import KINDS, attention_inputs, detached
from workers.attention import natq_cg, natq_exact, natq_rows
from workers.attention.natq_rows import FisherRows

LENGTH, D = 48, 12


def _block(dtype: torch.dtype = torch.float64, **kind: object) -> tuple[FisherRows, Tensor]:
    """All rows of a layer as one block, and gradients of norm 1."""
    inputs = detached(attention_inputs(length=LENGTH, d=D, dtype=dtype, **kind))
    gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = natq_rows.by_problem(inputs, (gradient / gradient.norm(dim=-1, keepdim=True)).to(dtype))
    block = natq_rows.fisher_rows(layer, slice(0, len(layer.keys)), range(LENGTH))
    return block, layer.gradient.flatten(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_products_are_those_with_the_matrix(kind: str) -> None:
    block, x = _block(**KINDS[kind])
    expected = (natq_exact.fisher(block) @ x[..., None]).squeeze(-1) + 0.1 * x
    found = natq_cg._Rows(block, x, ~block.flat)._product(x, 0.1)
    torch.testing.assert_close(found[~block.flat], expected[~block.flat], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["never packed", "half", "packed at once"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "all"])
def test_packing_changes_no_row(kind: str, every: int, share: float, monkeypatch) -> None:
    block, gradient = _block(**KINDS[kind])
    monkeypatch.setattr(natq_cg, "CPU_ASKED_EVERY", every)
    monkeypatch.setattr(natq_cg, "PACKED_SHARE", share)
    found = natq_cg.solve(block, gradient, 0.1, 1e-8, 100)
    assert found.done.all()
    alone = [
        natq_cg.solve(
            natq_rows.only(block, torch.full((len(gradient), 1), row)), gradient[:, row : row + 1], 0.1, 1e-8, 100
        )
        for row in range(gradient.shape[1])
    ]
    torch.testing.assert_close(found.x, torch.cat([each.x for each in alone], 1), rtol=1e-6, atol=1e-9)
    # the heads' rows of one number leave alone's block together, and may be looked at in other steps
    steps = torch.cat([each.steps for each in alone], 1)
    assert (found.steps - steps).abs().max() <= every


def test_rows_stop_by_themselves() -> None:
    block, gradient = _block()
    found = natq_cg.solve(block, gradient, 0.1, 1e-8, 100)
    steps = found.steps[0]
    assert steps[0] == 0  # nothing to solve
    assert steps[2] <= 4 < 10 < steps[-1]


def test_the_residual_bounds_the_relative_error() -> None:
    block, gradient = _block()
    exact = natq_exact.solve(block, gradient, 0.1).x
    for limit in (1, 3, 6, 9):
        found = natq_cg.solve(block, gradient, 0.1, 1e-12, limit)
        error = (found.x - exact).norm(dim=-1) / found.x.norm(dim=-1)
        solved = ~block.flat
        assert (error <= found.residual + 1e-12)[solved].all()  # beyond it both are rounding errors
        assert found.steps.max() == limit


def test_a_row_whose_curvature_is_not_positive_stands_still_and_is_not_done() -> None:
    """Which only rounding can bring about; here the weights of one row are turned to negative ones."""
    block, gradient = _block()
    expected = natq_cg.solve(block, gradient, 0.1, 1e-8, 100)
    weights = block.weights.clone()
    weights[1, 40] *= -10
    found = natq_cg.solve(replace(block, weights=weights), gradient, 0.1, 1e-8, 100)
    assert not found.done[1, 40]
    assert found.x.isfinite().all()
    others = torch.ones_like(found.done)
    others[1, 40] = False
    assert torch.equal(found.done[others], expected.done[others])
    torch.testing.assert_close(found.x[others], expected.x[others], rtol=1e-6, atol=1e-9)


def test_going_on_long_after_the_solution_is_reached_changes_nothing() -> None:
    """In float32, with a tolerance that no row can meet."""
    block, gradient = _block(torch.float32)
    exact = natq_exact.solve(block, gradient, 0.1).x
    found = natq_cg.solve(block, gradient, 0.1, 1e-30, 1000)
    assert found.x.isfinite().all()
    error = (found.x - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error[~block.flat].max() < 1e-4  # both are float32 solutions of matrices with a condition of about 100
