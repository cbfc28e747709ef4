"""What the figures of pattern stability hold."""

import math
from itertools import combinations

from dashboard.charts.distance_matrix import distance_matrix
from dashboard.charts.run_distances import LayerStability, by_layer, by_step, shown_steps
from dashboard.stability import Checkpoint, stability

HOSTILE = "z <b>run</b> with a long name & more"
CHECKPOINTS = [
    Checkpoint(1, "a", 0, "m"),
    Checkpoint(0, "a", 99, "m"),
    Checkpoint(2, HOSTILE, 0, "m"),
    Checkpoint(3, HOSTILE, 99, "m"),
]
DISTANCES = {(a, b): 0.1 * a + 0.2 * b for a, b in combinations(range(4), 2)}


def test_the_matrix_is_symmetric_in_the_order_of_runs_and_steps() -> None:
    figure = distance_matrix(CHECKPOINTS, DISTANCES, "distance", (1, 3))
    cells, targets = figure.data
    assert [[round(value, 3) for value in row] for row in cells.z] == [
        [0.0, 0.2, 0.5, 0.7],
        [0.2, 0.0, 0.4, 0.6],
        [0.5, 0.4, 0.0, 0.8],
        [0.7, 0.6, 0.8, 0.0],
    ]
    assert list(map(list, targets.customdata))[1] == [0, 1]  # numbers of the column and the row
    lines = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert {line.x0 for line in lines if line.x0 == line.x1} == {1.5}  # between the runs
    framed = {(shape.x0 + 0.5, shape.y0 + 0.5) for shape in figure.layout.shapes if shape.type == "rect"}
    assert framed == {(0, 3), (3, 0)}
    assert figure.layout.xaxis.ticktext[:2] == ("a, step 0", "a, step 99")
    assert "<b>" not in figure.layout.xaxis.ticktext[2]


def test_lines_end_at_0_and_the_level_between_ends_is_marked() -> None:
    figure = by_step(stability(CHECKPOINTS, DISTANCES), "distance")
    first, second = figure.data
    assert list(first.y) == [0.2, 0.0]
    assert list(first.x) == [0.0, math.log10(100)]
    assert list(second.y) == [DISTANCES[2, 3], 0.0]
    assert "<b>" not in second.name
    assert [shape.y0 for shape in figure.layout.shapes] == [DISTANCES[0, 3]]


def test_layers_show_the_mean_over_runs_of_each_step_and_the_range_between_ends() -> None:
    halved = {pair: value / 2 for pair, value in DISTANCES.items()}
    found = [LayerStability(layer, stability(CHECKPOINTS, table)) for layer, table in enumerate((DISTANCES, halved))]
    figure = by_layer(found, "distance")
    assert figure.layout.xaxis.range == (-0.5, 1.5)  # no layer that the model has not
    high, low, mean, step = figure.data
    assert list(high.y) == list(low.y) == list(mean.y) == [DISTANCES[0, 3], DISTANCES[0, 3] / 2]
    expected = (DISTANCES[0, 1] + DISTANCES[2, 3]) / 2
    assert list(step.y) == [expected, expected / 2]


def test_of_many_steps_the_first_and_the_last_are_shown() -> None:
    many = [Checkpoint(number, "a", 10 * number, "m") for number in range(20)]
    found = stability(many, dict.fromkeys(combinations(range(20), 2), 0.1))
    steps = shown_steps(found)
    assert len(steps) == 6 and (steps[0], steps[-1]) == (0, 180)
