"""Fisher matrices against their definition by autograd, and Cholesky solutions in blocks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.workers import natq_reference
from tests.unit.workers.attention.natq_inputs import KINDS, attention_inputs, detached, visible
from workers.attention import natq_exact, natq_rows, rows


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_those_of_the_definition_with_a_mean_eigenvalue_of_1(kind: str) -> None:
    inputs = detached(attention_inputs(**KINDS[kind]))
    layer = natq_rows.by_problem(inputs, inputs.query)
    length, groups = inputs.query.shape[2], layer.query.shape[1]
    block = natq_rows.fisher_rows(layer, slice(0, len(layer.keys)), range(length))
    found = natq_exact.fisher(block).unflatten(1, (groups, length)).reshape(*inputs.query.shape[:3], 6, 6)
    flat = block.flat.view(inputs.query.shape[:3])
    for sequence, head, position in np.ndindex(*inputs.query.shape[:3]):
        seen = visible(inputs)[sequence, head, position]
        sink = None if inputs.sinks is None else inputs.sinks[head]
        if seen.sum() <= (inputs.sinks is None):
            assert flat[sequence, head, position]
            continue
        keys = inputs.key[sequence, head // (inputs.query.shape[1] // inputs.key.shape[1]), seen]
        matrix = natq_reference.fisher(
            inputs.query[sequence, head, position], keys, inputs.scaling, inputs.softcap, sink
        )
        expected = matrix / np.trace(matrix) * len(matrix)
        np.testing.assert_allclose(found[sequence, head, position].numpy(), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("size", [1, 500, 2**20])
def test_rows_are_the_same_however_many_are_taken_together(size: int, monkeypatch) -> None:
    inputs = detached(attention_inputs(**KINDS["all"]))
    layer = natq_rows.by_problem(inputs, inputs.query)
    block = natq_rows.fisher_rows(layer, slice(0, len(layer.keys)), range(inputs.query.shape[2]))
    gradient = layer.gradient.flatten(1, 2)
    expected = natq_exact.solve(block, gradient, 0.1)
    monkeypatch.setattr(rows, "CPU_BLOCK", size)
    found = natq_exact.solve(block, gradient, 0.1)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.done, expected.done)


def test_a_matrix_without_a_decomposition_is_not_done_and_gives_no_x() -> None:
    """Which only rounding can bring about; here the weights of one row are turned to negative ones."""
    inputs = detached(attention_inputs())
    layer = natq_rows.by_problem(inputs, inputs.query)
    block = natq_rows.fisher_rows(layer, slice(0, len(layer.keys)), range(inputs.query.shape[2]))
    gradient = layer.gradient.flatten(1, 2)
    expected = natq_exact.solve(block, gradient, 0.1)
    weights = block.weights.clone()
    weights[1, 10] *= -10
    found = natq_exact.solve(replace(block, weights=weights), gradient, 0.1)
    assert not found.done[1, 10] and not found.x[1, 10].any()
    others = torch.ones_like(found.done)
    others[1, 10] = False
    assert torch.equal(found.x[others], expected.x[others])
