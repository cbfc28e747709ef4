"""Density of r, medians by layer, and sweeps: what is drawn from given numbers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dashboard.charts.median_layers import median_layers
from dashboard.charts.ratio_density import ratio_density
from dashboard.charts.transfer_sweep import transfer_sweep
from dashboard.summaries import Summary
from tests.unit.dashboard.charts.summary_rows import summary


def _ratios(values: list[float], job_id: int = 1) -> Summary:
    """As METRICS of calibration store r: 75 bins of 0.02, and one for all beyond."""
    bins = np.minimum(np.floor(np.asarray(values) / 0.02 + 1e-9), 75).astype(int)
    made = summary(values, "r", job_id=job_id)
    return replace(made, histogram_width=0.02, histogram=np.bincount(bins, minlength=76).tolist())


def test_the_density_leaves_out_what_lies_beyond_and_tells_its_share() -> None:
    figure = ratio_density([_ratios([0.1, 0.2, 0.2, 7.0])], {1: "one <b>"})
    (line,) = figure.data
    assert len(line.y) == len(line.x) == 76
    assert sum(line.y[:-1]) * 0.02 == pytest.approx(0.75)
    assert line.y[10] == pytest.approx(0.5 / 0.02)
    assert line.name == "one &lt;b&gt;; beyond 1.5: 25.0 %"
    assert [shape.x0 for shape in figure.layout.shapes] == [pytest.approx(0.2), 0.38]


def test_jobs_have_outlines_and_medians_of_their_own() -> None:
    figure = ratio_density([_ratios([0.1] * 3), _ratios([0.9] * 3, job_id=2)], {1: "one", 2: "two"})
    assert [trace.fill for trace in figure.data] == [None, None]
    assert [note.text for note in figure.layout.annotations][:2] == ["<b>median 0.10</b>", "<b>median 0.90</b>"]


def test_medians_are_drawn_by_layer_with_their_band() -> None:
    rows = [summary([layer, layer + 1, layer + 2], "r", layer=layer) for layer in (1, 0)]
    band, line = median_layers(rows, {1: "one"}, "r").data
    assert (list(line.x), list(line.y)) == ([0, 1], [1.0, 2.0])
    assert list(band.y) == [1.5, 2.5, 1.5, 0.5]


def test_a_layer_without_defined_rows_has_no_point() -> None:
    empty = replace(summary([1.0], "r", layer=0), median=None, q25=None, q75=None)
    _, line = median_layers([empty], {1: "one"}, "r").data
    assert line.customdata[0] == "no row is defined"


@dataclass
class _Point:
    c: float
    hard_loss_nats: float
    soft_loss_nats: float
    first_weight: float = 0.5
    second_weight: float = 0.25


def test_losses_of_a_sweep_are_drawn_as_changes_from_c_0() -> None:
    points = [_Point(-3.0, 2.5, 1.0), _Point(0.0, 2.0, 1.5), _Point(3.0, 1.0, 1.75)]
    hard, soft, first, second = transfer_sweep(points, "a <i>", "b").data
    assert list(hard.y) == [0.5, 0.0, -1.0]
    assert list(soft.y) == [-0.5, 0.0, 0.25]
    assert (first.name, second.name) == ("+c: a &lt;i&gt;", "−c: b")
    assert (list(first.y), list(second.y)) == ([0.5] * 3, [0.25] * 3)
