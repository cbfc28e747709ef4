"""What stands in the figure by layer."""

import numpy as np
import pytest

from dashboard.charts.layers import LayerPanel, layers
from tests.unit.dashboard.charts.summary_rows import summary


def test_lines_are_medians_in_the_order_of_the_layers_and_bands_the_quartiles() -> None:
    values = {layer: list(np.linspace(layer, layer + 2, 9)) for layer in (2, 0, 1)}
    panel = LayerPanel("job", [summary(each, layer=layer) for layer, each in values.items()])
    band, line = layers([panel]).data
    assert line.x == (0, 1, 2)
    assert line.y == pytest.approx([np.median(values[layer]) for layer in range(3)])
    assert band.y[:3] == pytest.approx([np.quantile(values[layer], 0.75) for layer in range(3)])
    assert band.y[3:] == pytest.approx([np.quantile(values[layer], 0.25) for layer in (2, 1, 0)])


def test_all_jobs_share_the_axis() -> None:
    panels = [LayerPanel(str(top), [summary([0.5, float(top)], layer=0)]) for top in (1, 8)]
    figure = layers(panels)
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range


@pytest.mark.parametrize("count", [1, 3, 30, 100])
def test_layers_are_ticked_at_whole_numbers(count: int) -> None:
    axis = layers([LayerPanel("job", [summary([1.0, 2.0], layer=layer) for layer in range(count)])]).layout.xaxis
    assert axis.tick0 == 0 and isinstance(axis.dtick, int)
    assert -(-count // axis.dtick) <= 32
    assert axis.range == (-0.5, count - 0.5)  # no tick beyond the last layer
