"""Rounded weights against NumPy, one group at a time."""

import numpy as np
import torch

from workers.models.rounding import GROUP, rounded


def test_every_weight_goes_to_the_nearest_of_the_groups_levels() -> None:
    weight = torch.randn(5, 3 * GROUP, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = rounded(weight, 3).numpy()
    for row, result in zip(weight.numpy(), found, strict=True):
        for start in range(0, len(row), GROUP):
            group, rounded_group = row[start : start + GROUP], result[start : start + GROUP]
            levels = np.linspace(group.min(), group.max(), 8)
            nearest = levels[np.abs(group[:, None] - levels).argmin(1)]
            np.testing.assert_allclose(rounded_group, nearest, atol=1e-12)
            assert len(np.unique(rounded_group.round(9))) <= 8


def test_equal_weights_stay_as_they_are() -> None:
    weight = torch.full((2, GROUP), 0.3)
    assert torch.equal(rounded(weight, 3), weight)
