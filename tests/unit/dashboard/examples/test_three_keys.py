"""The three-key example against autograd and against the closed form of the article."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dashboard.examples.three_keys import KEYS, ThreeKeys, deadlock, ellipse, picture


def _random(seed: int) -> ThreeKeys:
    rng = np.random.default_rng(seed)
    return ThreeKeys(*(2 * rng.normal(size=shape) for shape in (3, (3, 2), (3, 2), 2)))


@pytest.mark.parametrize("seed", range(5))
def test_update_and_jacobian_are_those_of_autograd(seed: int) -> None:
    example = _random(seed)
    logits, keys, values, target = (
        torch.tensor(each) for each in (example.logits, example.keys, example.values, example.target)
    )

    def output(query: torch.Tensor) -> torch.Tensor:
        return (logits + keys @ query / 2**0.5).softmax(0) @ values

    query = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    loss = (output(query) - target).square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, query)
    found = picture(example)
    np.testing.assert_allclose(found.update, -gradient, rtol=1e-12)
    np.testing.assert_allclose(found.contributions.sum(0), found.update, rtol=1e-12)
    np.testing.assert_allclose(found.jacobian, torch.autograd.functional.jacobian(output, query), rtol=1e-12)
    assert found.loss == pytest.approx(loss.item())


@pytest.mark.parametrize("seed", range(3))
def test_advantage_is_what_the_loss_loses_when_attention_moves_to_a_key(seed: int) -> None:
    example, small = _random(seed), 1e-6
    found = picture(example)
    for value, advantage in zip(example.values, found.advantage, strict=True):
        moved = (1 - small) * found.output + small * value
        change = (np.sum((moved - example.target) ** 2) - np.sum((found.output - example.target) ** 2)) / 2
        assert -change / small == pytest.approx(advantage, abs=1e-4)


@given(st.floats(1e-9, 0.9), st.floats(0.1, 50))
def test_the_deadlock_has_the_articles_closed_form(epsilon: float, advantage: float) -> None:
    found = picture(deadlock(epsilon, advantage))
    half = (1 - epsilon) / 2
    np.testing.assert_allclose(found.attention, [half, half, epsilon], rtol=1e-9)
    others = -epsilon * advantage / (1 - epsilon)
    np.testing.assert_allclose(found.advantage, [others, others, advantage], rtol=1e-9, atol=1e-15)
    # equation 22: exactly ε M / √d along the third key
    np.testing.assert_allclose(found.update, epsilon * advantage / np.sqrt(2) * KEYS[2], rtol=1e-9, atol=1e-15)
    # J = diag(1 − ε, ε(1 − ε)) / √2: the vertical direction is the weak one, ε times as strong
    np.testing.assert_allclose(found.jacobian, np.diag([1 - epsilon, epsilon * (1 - epsilon)]) / np.sqrt(2), atol=1e-15)
    assert found.flatness == pytest.approx(epsilon, rel=1e-6)
    assert abs(found.output_axes[1, 1]) == pytest.approx(1)


def test_axes_and_ellipse_are_the_image_of_unit_moves() -> None:
    found = picture(_random(4))
    for axis, size in enumerate(found.singular_values):
        np.testing.assert_allclose(found.jacobian @ found.query_axes[:, axis], size * found.output_axes[:, axis])
    lengths = np.linalg.norm(ellipse(found.jacobian, 721), axis=1)
    assert lengths.max() == pytest.approx(1, abs=1e-4)
    assert lengths.min() == pytest.approx(found.flatness, abs=1e-4)


def test_a_jacobian_of_zero_is_a_point() -> None:
    example = ThreeKeys(np.zeros(3), KEYS, np.ones((3, 2)), np.zeros(2))
    found = picture(example)
    assert found.flatness == 0
    assert not ellipse(found.jacobian).any()


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.2])
def test_a_weight_outside_its_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        deadlock(epsilon, 1.0)
