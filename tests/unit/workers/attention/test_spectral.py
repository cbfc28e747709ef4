"""Spectral norms, ranks and masses of the largest entries against whole decompositions and sorts in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from workers.attention.concentration import ranks, top_masses_
from workers.attention.spectral import bilinear_norm, gram_norm, largest_singular, largest_singular_value


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


INPUTS = {
    "tall": _normal(2, 300, 40),
    "wide": _normal(3, 20, 90),
    "one dominant direction": _normal(2, 200, 64) + 5 * _normal(64, seed=1),
    "all singular values equal": torch.linalg.qr(_normal(2, 100, 50)).Q * 3,
    "rank one": _normal(2, 60, 1) @ _normal(1, 30),
    "zero": torch.zeros(1, 12, 5, dtype=torch.float64),
    "single row": _normal(2, 1, 30),
    "unlike sequences": torch.stack([1e3 * _normal(40, 30), 1e-3 * _normal(40, 30)]),
    "nearly equal largest": torch.diag(torch.linspace(1, 1.001, 120, dtype=torch.float64))[None],
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", INPUTS)
def test_the_norm_of_a_gram_matrix_is_the_squared_largest_singular_value(name: str, dtype: torch.dtype) -> None:
    exact = torch.linalg.svdvals(INPUTS[name])[:, 0] ** 2
    found = gram_norm(INPUTS[name].to(dtype)).double()
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("d_model", [5, 50])  # also narrower than a head
def test_the_norm_of_the_bilinear_form_is_that_of_the_whole_product(d_model: int) -> None:
    query, key = _normal(6, d_model, 8), _normal(2, d_model, 8, seed=1)
    whole = torch.stack([key[head // 3] @ query[head].T for head in range(6)])
    torch.testing.assert_close(bilinear_norm(query, key), torch.linalg.svdvals(whole)[:, 0])
    torch.testing.assert_close(
        bilinear_norm(query.float(), key.float()), torch.linalg.svdvals(whole)[:, 0], rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ranks_are_those_of_the_singular_values(dtype: torch.dtype) -> None:
    patterns = torch.stack([(scale * _normal(30, 70, seed=s)).softmax(-1) for s, scale in enumerate((0.1, 2, 30))])
    stable, effective = ranks(patterns.to(dtype))
    for number, pattern in enumerate(patterns):
        squares = np.linalg.svd(pattern.numpy(), compute_uv=False) ** 2
        shares = squares / squares.sum()
        assert float(stable[number]) == pytest.approx(squares.sum() / squares[0], rel=1e-5)
        assert float(effective[number]) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-5)


def test_sparse_patterns_of_full_rank_and_of_rank_one_are_told_apart() -> None:
    before = torch.eye(16, 20)  # each query another key
    sink = torch.zeros(16, 20).index_fill(1, torch.tensor(0), 1.0)  # every query the same key
    stable, effective = ranks(torch.stack([before, sink]))
    torch.testing.assert_close(stable, torch.tensor([16.0, 1.0]))
    torch.testing.assert_close(effective, torch.tensor([16.0, 1.0]))
    for pattern in (before, sink):
        assert (top_masses_(pattern.clone(), torch.full((16,), 20.0)).one == 1).all()


@pytest.mark.parametrize("device_path", ["cpu", "topk"])
def test_masses_of_the_largest_entries_are_those_of_sorted_rows(device_path: str, monkeypatch) -> None:
    if device_path == "topk":  # as on a GPU
        monkeypatch.setattr(
            "workers.attention.concentration._largest_", lambda weights, number: weights.topk(number, dim=-1).values
        )
    keys = torch.tensor([1, 2, 7, 8, 9, 19, 20, 21, 60, 61, 399, 400])
    weights = _normal(len(keys), 400).exp() * (torch.arange(400) < keys[:, None])
    weights /= weights.sum(-1, keepdim=True)
    rows = [np.sort(row[:number].numpy())[::-1] for row, number in zip(weights, keys.tolist(), strict=True)]
    found = top_masses_(weights.clone(), keys.double())
    np.testing.assert_allclose(found.one, [row[0] for row in rows])
    np.testing.assert_allclose(found.eight, [row[:8].sum() for row in rows])
    np.testing.assert_allclose(found.five_percent, [row[: -(-len(row) // 20)].sum() for row in rows])


@pytest.mark.parametrize("shape", [(3, 40, 40), (2, 90, 20), (2, 20, 90), (1, 1, 7), (1, 7, 1)])
@pytest.mark.parametrize("size", [1.0, 1e-25])  # updates are small: their squares would be no float32
def test_largest_singular_value_and_its_vectors_equal_the_svd(shape: tuple[int, ...], size: float) -> None:
    x = size * torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    sigma, u, v = largest_singular(x)
    left, values, right = torch.linalg.svd((x / size).double(), full_matrices=False)
    torch.testing.assert_close(sigma.double() / size, values[:, 0], rtol=1e-5, atol=0)
    along = (left[:, :, 0] * u).sum(-1) * (right[:, 0] * v).sum(-1)  # both or none of them turned round
    torch.testing.assert_close(along, torch.ones_like(along), rtol=0, atol=1e-4)
    torch.testing.assert_close(largest_singular_value(x), sigma, rtol=0, atol=0)


def test_the_largest_singular_value_of_zeros_is_zero() -> None:
    x = torch.zeros(2, 5, 4)
    x[1, 2, 3] = -2.0
    sigma, u, v = largest_singular(x)
    assert sigma.tolist() == [0, 2]
    assert u.isfinite().all() and v.isfinite().all()
