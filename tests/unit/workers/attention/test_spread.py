"""Largest over median against NumPy, and the properties it must have."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from workers.attention import spread

rows_of_floats = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-50, 50))
)


def _hide(lengths: list[int], width: int, offset: int = 0) -> torch.Tensor:
    """True outside columns offset … offset + length of each row: [1, 1, row, column]."""
    columns = torch.arange(width)
    visible = [(columns >= offset) & (columns < offset + length) for length in lengths]
    return ~torch.stack(visible)[None, None]


def _log10_spread(rows: np.ndarray, hidden: torch.Tensor | None = None) -> np.ndarray:
    block = torch.from_numpy(rows.copy())[None, None]
    if hidden is None:
        hidden = torch.zeros(1, 1, *rows.shape, dtype=torch.bool)
    found, _ = spread.log10_spread_(block, spread.padding(hidden, rows.shape[-1]))
    return found[0, 0].numpy()


def _log10_weights(scores: np.ndarray, hidden: torch.Tensor | None = None) -> np.ndarray:
    block = torch.from_numpy(scores.copy())[None, None]
    if hidden is None:
        hidden = torch.zeros(1, 1, *scores.shape, dtype=torch.bool)
    found = spread.log10_spread_of_weights_(block, block.amax(-1), spread.padding(hidden, scores.shape[-1]))
    return found[0, 0].numpy()


@given(rows_of_floats)
def test_spread_equals_numpys_largest_over_median(rows: np.ndarray) -> None:
    magnitudes = np.abs(rows) + 1e-3
    expected = np.log10(magnitudes.max(-1) / np.median(magnitudes, axis=-1))
    np.testing.assert_allclose(_log10_spread(magnitudes), expected, atol=1e-12)


@given(rows_of_floats)
def test_spread_of_weights_equals_that_of_their_exponentials(scores: np.ndarray) -> None:
    weights = np.exp(scores)
    expected = np.log10(weights.max(-1) / np.median(weights, axis=-1))
    np.testing.assert_allclose(_log10_weights(scores), expected, atol=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 6), st.randoms())
def test_hidden_entries_change_nothing_wherever_they_are(lengths, offset, spare, random) -> None:
    """Rows of every length, even and odd, in blocks of even and odd width, hidden on either side or both."""
    width = offset + max(lengths) + spare
    generator = np.random.default_rng(random.randrange(2**32))
    rows = np.abs(generator.normal(size=(len(lengths), width)))
    hidden = _hide(lengths, width, offset)
    kept = [row[offset : offset + length] for row, length in zip(rows, lengths, strict=True)]
    expected = [np.log10(row.max() / np.median(row)) for row in kept]
    np.testing.assert_allclose(_log10_spread(rows, hidden), expected, atol=1e-12)
    expected = [np.log10(np.exp(row).max() / np.median(np.exp(row))) for row in kept]
    np.testing.assert_allclose(_log10_weights(np.where(hidden[0, 0], -np.inf, rows), hidden), expected, atol=1e-12)


@given(rows_of_floats, st.randoms())
def test_the_order_of_keys_does_not_matter(rows: np.ndarray, random) -> None:
    order = np.random.default_rng(random.randrange(2**32)).permutation(rows.shape[-1])
    np.testing.assert_array_equal(_log10_spread(np.abs(rows)), _log10_spread(np.abs(rows)[:, order]))


@given(rows_of_floats, st.floats(-20, 20))
def test_the_scale_of_a_row_does_not_matter(scores: np.ndarray, shift: float) -> None:
    np.testing.assert_allclose(_log10_weights(scores + shift), _log10_weights(scores), atol=1e-11)
    magnitudes = np.abs(scores) + 1e-3
    np.testing.assert_allclose(_log10_spread(magnitudes * np.exp(shift)), _log10_spread(magnitudes), atol=1e-11)


@settings(max_examples=50)
@given(rows_of_floats)
def test_no_spread_is_below_one_even_in_float32(rows: np.ndarray) -> None:
    for found in (_log10_weights(rows.astype(np.float32)), _log10_spread(np.abs(rows).astype(np.float32) + 1e-3)):
        assert (found >= 0).all()


def test_ratios_beyond_float32_weights_stay_finite() -> None:
    scores = np.array([[0.0, -300.0, -400.0]], dtype=np.float32)  # weights of 1, 1e-130 and 1e-174
    np.testing.assert_allclose(_log10_weights(scores), 300 / np.log(10), rtol=1e-6)


@pytest.mark.parametrize("row", [[1.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
def test_a_zero_median_gives_infinity(row: list[float]) -> None:
    assert _log10_spread(np.array([row])) == np.inf


def test_a_row_of_zeros_has_no_spread() -> None:
    assert np.isnan(_log10_spread(np.zeros((2, 5)))).all()


def test_a_nan_in_a_row_shows_in_that_row_only() -> None:
    rows = np.array([[1.0, np.nan, 2.0], [1.0, 4.0, 2.0]])
    np.testing.assert_allclose(_log10_spread(rows), [np.nan, np.log10(2)])
    np.testing.assert_allclose(_log10_weights(rows), [np.nan, 2 / np.log(10)])


@given(rows_of_floats, st.booleans())
def test_torch_selects_the_same_entries_as_numpy(rows: np.ndarray, two: bool) -> None:
    """GPUs take torch's selection; it is compared here on the CPU."""
    rank, block = rows.shape[-1] // 2, torch.from_numpy(rows)
    two = two and rank > 0
    for one, other in zip(
        spread.kth_middle(block, rank, two=two), spread.partition_middle_(block.clone(), rank, two=two), strict=True
    ):
        assert torch.equal(one, other)
