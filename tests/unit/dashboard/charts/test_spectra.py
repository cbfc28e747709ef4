"""Figure 3: effective ranks beside mean relative spectra."""

import pytest

from dashboard.charts.spectra import MOST_BANDS, Curve, spectra
from dashboard.queries.jacobian_spectrum import Mode
from tests.unit.dashboard.charts.summary_rows import summary


def curve(name: str, colour: int = 0, dash: int = 0) -> Curve:
    modes = [Mode(1, 0, 0, mode, 9, 10.0**-mode, 0.5 * 10.0**-mode, 10.0**-mode, 2 * 10.0**-mode) for mode in range(3)]
    return Curve(name, colour, dash, summary([1.05, 1.15, 1.15, 1.95]), modes)


def test_a_curve_has_shares_of_queries_and_the_mean_spectrum_with_its_band_on_a_log_axis() -> None:
    ranks, band, mean = spectra([curve("layer 2, head 0")]).data
    assert sum(ranks.y[:-1]) == pytest.approx(100)
    assert list(mean.x) == [1, 2, 3] and list(mean.y) == pytest.approx([0, -1, -2])
    assert band.y[0] == pytest.approx(0.30103) and band.y[-1] == pytest.approx(-0.30103)
    assert ranks.line.color == mean.line.color == band.fillcolor


def test_heads_differ_in_colour_and_jobs_in_dash() -> None:
    figure = spectra([curve("a"), curve("b", colour=1), curve("c", dash=1)])
    one, two, three = (trace for trace in figure.data if trace.xaxis == "x")
    assert one.line.color == three.line.color != two.line.color
    assert one.line.dash == two.line.dash != three.line.dash


def test_many_curves_have_no_bands_and_each_is_named_once() -> None:
    figure = spectra([curve(str(index)) for index in range(MOST_BANDS + 1)])
    assert not any(trace.fill for trace in figure.data)
    assert sum(trace.showlegend is not False for trace in figure.data) == MOST_BANDS + 1


def test_modes_that_vanish_stay_on_the_axis() -> None:
    modes = [Mode(1, 0, 0, 0, 9, 1.0, 1.0, 1.0, 1.0), Mode(1, 0, 0, 1, 9, 0.0, 0.0, 0.0, 0.0)]
    figure = spectra([Curve("x", 0, 0, None, modes)])
    assert figure.layout.yaxis2.range[0] >= -5
    assert figure.data[-1].showlegend
