"""The scalar bias of sigmoid routing that gives the least loss: a coarse grid, then a golden-section search."""

import math
from collections.abc import Callable

_STEPS = 6  # of the golden section: each takes 0.38 of the bracket away
_GOLDEN = (math.sqrt(5) - 1) / 2


def least(loss: Callable[[float], float], length: int) -> float:
    """The b between −2 log n − 2 and 2 at which ``loss`` is least, to about 0.1, n being the length of a sequence.

    The grid is there because the loss need not have one minimum only; a loss that is not a number never is the least.
    """
    low, high, points = -2 * math.log(length) - 2, 2.0, 9
    spacing = (high - low) / (points - 1)
    known = {low + index * spacing: math.inf for index in range(points)}

    def at(bias: float) -> float:
        found = loss(bias)
        known[bias] = math.inf if math.isnan(found) else found
        return known[bias]

    for bias in list(known):
        at(bias)
    middle = min(known, key=known.__getitem__)
    left, right = middle - spacing, middle + spacing
    inner = [right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)]
    values = [at(bias) for bias in inner]
    for _ in range(_STEPS):
        if values[0] < values[1]:
            right, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = right - _GOLDEN * (right - left)
            values[0] = at(inner[0])
        else:
            left, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = left + _GOLDEN * (right - left)
            values[1] = at(inner[1])
    return min(known, key=known.__getitem__)
