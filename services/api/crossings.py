"""When a rule raises an alert: once where it begins to be met, and again only after the number has recovered."""

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from db.repositories.watch_rules import Place

MOST_ALERTS = 25  # that a rule raises about one run or job at one look; further places are counted on the last of them


@dataclass(frozen=True)
class Reading:
    """One number that a rule looks at, with the values that matter to it."""

    step: int | None
    place: Place
    value: float
    limit: float  # beyond it the rule is met
    back: float  # at it, or further back, the number has recovered
    told: str = ""  # what the message adds


@dataclass(frozen=True)
class Raised:
    reading: Reading
    others: int = 0


@dataclass
class Outcome:
    raised: list[Raised] = field(default_factory=list)
    met: dict[Place, Reading] = field(default_factory=dict)  # places where the rule is met from now on
    recovered: set[Place] = field(default_factory=set)


def judge(readings: Iterable[Reading], met_at: Set[Place], *, below: bool) -> Outcome:
    """What follows from numbers, in their order, for a rule that is met at ``met_at``.

    A number between ``limit`` and ``back`` changes nothing: one that trembles around the limit raises one alert. NaN is
    above every limit and below none: what has become NaN has not collapsed, it has blown up.
    """
    now: dict[Place, Reading | None] = dict.fromkeys(met_at)
    outcome = Outcome()
    crossed: list[Reading] = []
    for reading in readings:
        if reading.place not in now:
            if _beyond(reading.value, reading.limit, below):
                now[reading.place] = reading
                crossed.append(reading)
        elif _recovered(reading.value, reading.back, below):
            del now[reading.place]
            outcome.recovered.add(reading.place)
    outcome.met = {place: reading for place, reading in now.items() if reading is not None}
    outcome.recovered &= set(met_at)
    outcome.raised = _limited(crossed, below)
    return outcome


def _limited(crossed: list[Reading], below: bool) -> list[Raised]:
    """Alerts by step, the worst of a step first; those beyond the most are counted on the last."""
    crossed.sort(key=lambda each: (-1 if each.step is None else each.step, -_excess(each, below)))
    raised = [Raised(reading) for reading in crossed[:MOST_ALERTS]]
    if len(crossed) > MOST_ALERTS:
        raised[-1] = Raised(raised[-1].reading, len(crossed) - MOST_ALERTS)
    return raised


def _excess(reading: Reading, below: bool) -> float:
    if math.isnan(reading.value):
        return math.inf
    return reading.limit - reading.value if below else reading.value - reading.limit


def _beyond(value: float, limit: float, below: bool) -> bool:
    if math.isnan(value):
        return not below
    return value < limit if below else value > limit


def _recovered(value: float, back: float, below: bool) -> bool:
    return value >= back if below else value <= back
