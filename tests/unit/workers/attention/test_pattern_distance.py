"""Distances of rows against SciPy in float64, and what must hold of any two rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import distance

from workers.attention.pattern_distance import LN_2, distances, head_divergences, negative_entropies


def rows(*shape: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(spread * torch.randn(shape, generator=generator, dtype=torch.float64), -1)


def by_scipy(first: torch.Tensor, second: torch.Tensor) -> np.ndarray:
    both = list(zip(*(each.reshape(-1, each.shape[-1]).numpy() for each in (first, second)), strict=True))
    found = [
        [distance.jensenshannon(p, q) ** 2 for p, q in both],
        [distance.cityblock(p, q) / 2 for p, q in both],
        [distance.cosine(p, q) for p, q in both],
    ]
    return np.array(found).reshape(3, *first.shape[:-1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_the_three_distances_are_those_of_scipy(dtype: torch.dtype, tolerance: float) -> None:
    first, second = rows(4, 5, 200), rows(4, 5, 200, seed=1)
    first[:, :, 150:], second[:, :, :40] = 0, 0  # keys in one row, in the other, in neither
    second[:, :, 170:] = 0
    first, second = first / first.sum(-1, keepdim=True), second / second.sum(-1, keepdim=True)
    found = distances(first.to(dtype), second.to(dtype))
    np.testing.assert_allclose(found.double().numpy(), by_scipy(first, second), atol=tolerance)


def test_small_distances_keep_three_digits_in_float32() -> None:
    """Scores that differ by 10⁻³: JS of 10⁻⁷ would drown in the rounding of entropies."""
    first = rows(3, 4, 300)
    second = torch.softmax(first.log() + 1e-3 * torch.randn(first.shape, generator=torch.Generator()), -1)
    first, second = first.float(), second.float()
    expected = by_scipy(first.double() / first.double().sum(-1, keepdim=True), second.double())
    assert expected[0].max() < 1e-6
    np.testing.assert_allclose(distances(first, second).numpy(), expected, rtol=2e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=40), st.integers(0, 2**32))
def test_distances_are_symmetric_bounded_and_0_between_equal_rows(values: list[float], seed: int) -> None:
    values = [1.0, *values] if sum(values) == 0 else values
    first = torch.tensor(values) / sum(values)
    second = first[torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))]
    found = distances(first, second)
    torch.testing.assert_close(found, distances(second, first), atol=1e-6, rtol=0)
    assert (found >= -1e-7).all() and (found <= torch.tensor([LN_2, 1, 1]) + 1e-6).all()
    assert (distances(first, first) == 0).all()


def test_rows_without_a_common_key_are_as_far_apart_as_can_be() -> None:
    first, second = torch.tensor([0.5, 0.5, 0, 0]), torch.tensor([0, 0, 0.9, 0.1])
    torch.testing.assert_close(distances(first, second), torch.tensor([math.log(2), 1.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_divergences_of_all_heads_are_sums_of_the_rows(dtype: torch.dtype) -> None:
    first, second = rows(3, 6, 50), rows(5, 6, 50, seed=1)
    found = head_divergences(
        first.to(dtype), second.to(dtype), negative_entropies(first.to(dtype)), negative_entropies(second.to(dtype))
    )
    expected = np.array([[by_scipy(p, q)[0].sum() for q in second] for p in first])
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6 if dtype == torch.float32 else 1e-13)
