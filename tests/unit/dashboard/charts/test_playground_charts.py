"""Figures of the playground and of the ratchet page show the numbers they are given."""

import math

import numpy as np
import pytest

from dashboard.charts.credit_loop import MOST_FRAMES, credit_loop
from dashboard.charts.ratchet_bands import LABELS, Band, ratchet_bands
from dashboard.charts.three_keys import ELLIPSE_RADIUS, magnification, three_keys
from dashboard.examples.credit_loop import play, start
from dashboard.examples.three_keys import deadlock, picture


def test_arrows_end_where_the_update_and_the_correction_do() -> None:
    example = deadlock(0.05, 2.0)
    found = picture(example)
    figure = three_keys(example, found)
    ends = [(a.x, a.y) for a in figure.layout.annotations if a.showarrow]
    factor = magnification(float(np.linalg.norm(found.update)))
    assert any(np.allclose(end, factor * found.update) for end in ends)
    assert any(np.allclose(end, example.target) for end in ends)
    ellipse = next(trace for trace in figure.data if trace.fill == "toself")
    assert np.ptp(ellipse.x) == pytest.approx(2 * ELLIPSE_RADIUS, rel=1e-3)
    assert np.ptp(ellipse.y) == pytest.approx(2 * ELLIPSE_RADIUS * 0.05, rel=1e-2)


def test_names_keep_clear_of_each_other_where_a_value_lies_on_the_target() -> None:
    example = deadlock(0.01, 1.0)
    figure = three_keys(example, picture(example))
    places = {trace.text[0].strip(): trace.textposition for trace in figure.data if trace.text}
    assert places["k<sub>3</sub>"] == "top center"  # the update's name stands below it
    assert (places["v<sub>3</sub>"], places["target"]) == ("middle left", "middle right")
    named = {note.text: note for note in figure.layout.annotations if not note.showarrow}
    assert named["−δ"].y == pytest.approx(example.target[1] / 2, abs=0.01)  # beside the middle of the arrow
    assert named["query update × 100"].xanchor == "left"


@pytest.mark.parametrize(("length", "factor"), [(3.0, 1), (0.1, 1), (0.02, 10), (4e-5, 1e4), (0.0, 1)])
def test_small_arrows_are_enlarged_by_a_power_of_ten(length: float, factor: float) -> None:
    assert magnification(length) == factor


def test_frames_lead_from_the_step_shown_to_the_last_one() -> None:
    course = play(start(np.array([0.4, 0, 0]), np.zeros(3)), 250)
    figure = credit_loop(course, 100)
    names = [int(frame.name) for frame in figure.frames]
    assert (names[0], names[-1]) == (0, 250) and len(names) <= MOST_FRAMES + 1
    asked = [int(name) for name in figure.layout.updatemenus[0].buttons[0].args[0]]
    assert asked == [name for name in names if name >= 100]
    np.testing.assert_allclose(figure.data[0].y, course.attention[100])
    np.testing.assert_allclose(figure.frames[-1].data[1].y, (course.attention * course.advantage)[-1])


def test_bands_run_from_the_smallest_weights_to_the_largest() -> None:
    bands = [Band(7, band, 10 * band, None if band == 0 else band / 10, 0.5, -0.1) for band in range(5)]
    figure = ratchet_bands(bands, {7: "job"})
    assert list(figure.data[0].x) == list(LABELS[::-1])
    assert list(figure.data[0].y) == [0.4, 0.3, 0.2, 0.1, None]
    assert math.isclose(figure.data[2].y[0], -0.1)
