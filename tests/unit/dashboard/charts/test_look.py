"""Ticks of logarithmic axes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.look import log10_axis


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 4.0, ["1", "10", "100", "10³", "10⁴"]),
        (-2.05, 0.1, ["10⁻²", "10⁻¹", "1"]),
        (-0.8, 0.7, ["0.2", "0.5", "1", "2", "5"]),
        (2.2, 3.9, ["200", "500", "1,000", "2,000", "5,000"]),
        (-8.9, -7.6, ["2 × 10⁻⁹", "5 × 10⁻⁹", "10⁻⁸", "2 × 10⁻⁸"]),
        (3.3, 3.7, ["2,000", "2,500", "3,000", "3,500", "4,000", "4,500", "5,000"]),
        (0.61, 0.75, ["4.5", "5", "5.5"]),
    ],
)
def test_an_axis_of_few_decades_has_ticks_between_the_powers_of_ten(low: float, high: float, labels: list[str]) -> None:
    assert log10_axis(low, high, "")["ticktext"] == labels


@given(st.floats(-12, 12), st.floats(0.05, 20))
def test_every_axis_has_three_ticks_or_more_in_sight_at_the_number_they_name(low: float, span: float) -> None:
    axis = log10_axis(low, low + span, "")
    ticks, labels = axis["tickvals"], axis["ticktext"]
    assert 3 <= len(ticks) <= 13
    assert all(low - 1e-9 <= tick <= low + span + 1e-9 for tick in ticks)
    assert ticks == sorted(ticks) and len(set(labels)) == len(labels)
    for tick, label in zip(ticks, labels, strict=True):
        assert _value(label) == pytest.approx(10**tick, rel=1e-3)


def _value(label: str) -> float:
    power = re.fullmatch(r"(?:(.+) × )?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)", label)
    if power is None:
        return float(label.replace(",", ""))
    exponent = int(power[2].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
    return float(power[1] or 1) * 10.0**exponent
