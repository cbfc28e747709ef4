"""The bound on a row's entropy: true, attained, falling, and right where it underflows."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.workers.reference_entropy import bound
from workers.attention.entropy_bound import log_lower_bound, needed_sigma, of_block
from workers.attention.inputs import AttentionInputs


def _bound(sigma: Tensor | float, keys: Tensor | float) -> Tensor:
    both = torch.broadcast_tensors(*(torch.as_tensor(x, dtype=torch.float64) for x in (sigma, keys)))
    return log_lower_bound(*both)


def _entropy(scores: Tensor) -> Tensor:
    return torch.special.entr(scores.softmax(-1)).sum(-1)


def _sigma(scores: Tensor) -> Tensor:
    return (scores - scores.mean(-1, keepdim=True)).norm(dim=-1)


@pytest.mark.parametrize("keys", [2, 3, 10, 200])
@pytest.mark.parametrize("spread", [1e-3, 0.3, 1.0, 4.0, 20.0])
def test_no_row_has_less_entropy_than_the_bound(keys: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(keys)
    normal = spread * torch.randn(500, keys, generator=generator, dtype=torch.float64)
    few_high = normal * (torch.rand(500, keys, generator=generator) < 2 / keys)
    for scores in (normal, few_high, normal.exp().clamp_max(700)):
        least = _bound(_sigma(scores), float(keys)).exp()
        assert (_entropy(scores) >= least - 1e-12).all()


def test_the_least_entropy_on_a_circle_of_three_scores_is_the_bound() -> None:
    """Centred rows of three scores with one norm form a circle: all of it is searched."""
    plane = torch.linalg.qr(torch.tensor([[1.0, 0], [-1, 1], [0, -1]], dtype=torch.float64)).Q
    angles = torch.linspace(0, 2 * math.pi, 100_001, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], -1) @ plane.T
    for sigma in (0.1, 1.0, 3.0, 8.0):
        assert float(_entropy(sigma * circle).min()) == pytest.approx(float(_bound(sigma, 3).exp()), rel=1e-6)


@pytest.mark.parametrize("keys", [2, 7, 1000])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 10.0])
def test_one_high_score_among_equal_ones_attains_the_bound(keys: int, sigma: float) -> None:
    high = torch.zeros(keys, dtype=torch.float64)
    high[0] = sigma * math.sqrt(keys / (keys - 1))
    assert float(_sigma(high)) == pytest.approx(sigma)
    assert float(_entropy(high)) == pytest.approx(float(_bound(sigma, keys).exp()), rel=1e-9)
    least = _entropy(high)[None]
    needed = needed_sigma(least, torch.full_like(least, 3 * sigma), torch.full_like(least, keys))
    assert float(needed) == pytest.approx(sigma, rel=1e-5)


def test_the_bound_falls_from_log_n() -> None:
    for keys in (2, 5, 1000):
        least = _bound(torch.linspace(0, 60, 601), float(keys))
        assert (least.diff() < 0).all()
        assert float(least[0].exp()) == pytest.approx(math.log(keys))


def test_the_bound_is_that_of_the_theorem_and_goes_on_where_that_underflows() -> None:
    for keys, sigma in ((2, 0.5), (17, 3.0), (1024, 30.0), (4096, 200.0)):
        assert float(_bound(sigma, keys)) == pytest.approx(math.log(bound(sigma, keys)), rel=1e-12)
    for keys, sigma in ((2, 2e3), (1024, 1e4), (100_000, 1e5)):  # n σ exp(−σ) for large σ and n
        asymptotic = -sigma * math.sqrt(keys / (keys - 1)) + math.log(sigma * math.sqrt(keys * (keys - 1)) + keys - 1)
        assert float(_bound(sigma, keys)) == pytest.approx(asymptotic, rel=1e-12)
    assert float(_bound(0.0, 1)) == -math.inf  # a single key: no entropy, no spread


def _row(scores: Tensor, sink: float | None = None) -> AttentionInputs:
    """Attention whose last query has just these scores: keys are unit vectors, every query the scores."""
    keys = len(scores)
    return AttentionInputs(
        layer=0,
        query=scores.expand(1, 1, keys, keys),
        key=torch.eye(keys, dtype=scores.dtype)[None, None],
        value=torch.eye(keys, dtype=scores.dtype)[None, None],
        scaling=1.0,
        mask=None,
        softcap=None,
        sinks=None if sink is None else torch.tensor([sink], dtype=scores.dtype),
    )


@pytest.mark.parametrize("spread", [1e-2, 3.0, 30.0, 200.0])
@pytest.mark.parametrize("sink", [None, 2.0])
def test_rows_in_float32_have_the_entropy_and_norm_of_float64(spread: float, sink: float | None) -> None:
    scores = spread * torch.randn(300, generator=torch.Generator().manual_seed(1)) - 50
    found = of_block(_row(scores, sink), range(299, 300))
    exact = scores.double()
    assert float(found.entropy_nats) == pytest.approx(float(_entropy(exact)), rel=1e-4, abs=1e-30)
    assert float(found.sigma) == pytest.approx(float(_sigma(exact)), rel=1e-5)
    assert float(found.keys) == 300
    normalizer = exact.logsumexp(-1)
    share = 1.0 if sink is None else float((normalizer - torch.logaddexp(normalizer, torch.tensor(2.0))).exp())
    assert float(found.share) == pytest.approx(share, rel=1e-4)
    np.testing.assert_allclose(found.weights.flatten(), exact.softmax(-1), rtol=1e-3, atol=1e-30)
