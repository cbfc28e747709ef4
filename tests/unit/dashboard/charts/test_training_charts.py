"""What the figures of the laboratory hold."""

from dataclasses import dataclass

import pytest

from dashboard.charts.curves import Curve, curves
from dashboard.charts.look import RUN_COLOURS, variant_places
from dashboard.charts.setting_grid import Cell, Panel, setting_grid
from dashboard.charts.setting_lines import SettingLine, setting_lines
from dashboard.charts.step_layers import layer_lines, layer_map
from dashboard.training_metrics import decimals, digits, in_order, named
from db.sweep_results import SettingResult


def test_a_curve_keeps_its_points_and_its_band_lies_around_it() -> None:
    line = Curve("natq <b>", [0, 1, 2], [3.0, float("nan"), 1.0], 1, low=[2.5, 1.5, 0.5], high=[3.5, 2.5, 1.5])
    figure = curves([line], x_title="step", y_title="loss", words=decimals(2), zero=True)
    high, low, shown = figure.data
    assert (list(high.y), list(low.y), low.fill) == ([3.5, 2.5, 1.5], [2.5, 1.5, 0.5], "tonexty")
    assert list(shown.text) == ["3.00", "–", "1.00"]
    assert shown.name == "natq &lt;b&gt;"
    assert len(figure.layout.shapes) == 1


@dataclass
class LayerCell:
    layer: int
    step: int
    value: float


def test_layers_lie_from_top_to_bottom_and_gaps_stay_empty() -> None:
    cells = [LayerCell(0, 10, 1.0), LayerCell(2, 10, 3.0), LayerCell(2, 250, 4.0)]
    figure = layer_map(cells, "entropy", digits)
    assert [list(row) for row in figure.data[0].z] == [[1.0, None], [3.0, 4.0]]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]
    lines = layer_lines(cells, "entropy", digits)
    assert [(trace.name, list(trace.x)) for trace in lines.data] == [("layer 0", [10]), ("layer 2", [10, 250])]


def test_a_grid_orders_its_axes_and_frames_the_best() -> None:
    cells = [
        Cell(1e-2, 0.1, 3.2, "a"),
        Cell(1e-3, 0.1, 3.0, "b", best=True),
        Cell(1e-3, 0, None, "c"),
        Cell(1e-2, 0, 9.0, "d"),
    ]
    figure = setting_grid([Panel("control", cells), Panel("natq", cells[:1])], "learning rate", "weight decay")
    assert [list(row) for row in figure.data[0].z] == [[None, 9.0], [3.0, 3.2]]
    assert list(figure.layout.xaxis.ticktext) == ["0.001", "0.01"]
    frame = figure.layout.shapes[0]
    assert (frame.x0, frame.y0) == (-0.5, 0.5)


def test_a_setting_that_diverged_does_not_take_the_colours_of_the_others() -> None:
    cells = [Cell(place, 0, 3.0 + place / 10, "") for place in range(9)] + [Cell(9, 0, 1e6, "")]
    axis = setting_grid([Panel("control", cells)], "x", "y").layout.coloraxis
    assert (axis.cmin, axis.cmax) == (3.0, 3.7)  # the eighth of ten


def test_many_values_are_dots_on_axes_of_their_own_scale() -> None:
    cells = [Cell(10.0**-power, power, 3.0 + power, str(power)) for power in range(20)]
    figure = setting_grid([Panel("control", cells)], "x", "y")
    assert figure.data[0].type == "scatter" and len(figure.data[0].x) == 20
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "linear")


def test_one_axis_gives_lines_in_the_order_of_its_numbers() -> None:
    found = [SettingResult("control", {"lr": rate}, 2, losses) for rate, losses in ((0.01, [3.0, 3.2]), (0.001, [3.5]))]
    figure = setting_lines([SettingLine("control", found)], "lr")
    assert list(figure.data[0].x) == ["0.001", "0.01"]
    assert list(figure.data[0].y) == pytest.approx([3.5, 3.1])
    assert list(figure.data[0].error_y.array) == pytest.approx([0.0, 0.1414], abs=1e-4)


def test_unknown_metrics_go_by_their_own_name_behind_the_known_ones() -> None:
    assert in_order(["zebra_count", "loss_nats", "validation_loss_nats"]) == [
        "validation_loss_nats",
        "loss_nats",
        "zebra_count",
    ]
    assert named("zebra_count").label == "zebra count"


def test_ticks_stand_at_whole_steps_of_short_runs() -> None:
    def ticks(*steps: int) -> list[int] | None:
        figure = curves([Curve("a", steps, [1.0] * len(steps))], x_title="step", y_title="loss", words=digits)
        found = figure.layout.xaxis.tickvals
        return None if found is None else list(found)

    assert ticks(0) == [0]
    assert ticks(0, 2) == [0, 1, 2]
    assert ticks(0, 500) is None


def test_the_control_has_the_first_colour_whatever_is_shown_beside_it() -> None:
    assert variant_places(["natq", "control", "qk_norm"]) == [1, 0, 2]
    assert variant_places(["control", "natq"]) == [0, 1]
    assert variant_places(["natq"]) == [1]
    assert variant_places(["control", "natq", "control"]) == [0, 1, 2]
    found = [SettingResult("natq", {"lr": 1}, 1, [3.0])], [SettingResult("control", {"lr": 1}, 1, [3.0])]
    figure = setting_lines([SettingLine("natq", found[0]), SettingLine("control", found[1])], "lr")
    assert [trace.line.color for trace in figure.data] == [RUN_COLOURS[1], RUN_COLOURS[0]]
