"""The numbers that a rule looks at: of a job's summaries, or of a run by step, with what they are compared with."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from psycopg import Connection

from db.repositories import watch_rules
from db.repositories.watch_rules import Place
from services.api.crossings import Reading
from services.contracts.rules import AnyRule, EntropyMarginRule, LossJumpRule, MetricRule, SigmaRule


@dataclass(frozen=True)
class Readings:
    rows: list[Reading]
    memory: Mapping[str, Any]
    last_step: int | None = None  # up to which they are; None if there are none


def below(rule: AnyRule) -> bool:
    """Whether a rule is met by numbers that are too small."""
    return isinstance(rule, EntropyMarginRule) or (isinstance(rule, MetricRule) and rule.below is not None)


def of_job(conn: Connection, job_id: int, step: int | None, rule: AnyRule) -> list[Reading]:
    """What a finished job says to a rule about its kind."""
    assert not isinstance(rule, LossJumpRule), "it is about the training"
    if isinstance(rule, MetricRule):
        level, statistic, limit = rule.level or "head", rule.statistic or "mean", rule.threshold
    elif isinstance(rule, SigmaRule):
        level, statistic, limit = "head", "mean", rule.above
    else:
        level, statistic, limit = rule.level, rule.statistic, rule.within_nats
    values = watch_rules.summary_values(conn, job_id, rule.metric, level, statistic)
    logarithm = isinstance(rule, SigmaRule)
    return [
        _reading(rule, step, Place(layer, head), _power_of_ten(value) if logarithm else value, limit)
        for layer, head, value in values
    ]


def of_run(conn: Connection, run_id: int, after: int, rule: AnyRule, memory: Mapping[str, Any]) -> Readings:
    """What a run's numbers after a step say to a rule about the training."""
    if isinstance(rule, LossJumpRule):
        values = watch_rules.metric_values(conn, run_id, rule.metric, "model", after)
        return jumps(rule, [(step, value) for step, _, _, value in values], memory)
    if isinstance(rule, SigmaRule):
        sigmas = watch_rules.sigma_values(conn, run_id, rule.metric, rule.matrix, after)
        rows = [
            _reading(rule, step, Place(layer, None, matrix), value, rule.above) for step, layer, matrix, value in sigmas
        ]
    else:
        assert isinstance(rule, MetricRule), "the margin of entropy is a probe's"
        found = watch_rules.metric_values(conn, run_id, rule.metric, rule.level or "model", after)
        rows = [_reading(rule, step, Place(layer, head), value, rule.threshold) for step, layer, head, value in found]
    return Readings(rows, memory, rows[-1].step if rows else None)


def jumps(rule: LossJumpRule, losses: Sequence[tuple[int, float]], memory: Mapping[str, Any]) -> Readings:
    """Each loss with the one from which it would be a jump: that of the earlier values, and the rule's size above.

    The first loss has no earlier ones and is no jump, unless it is not finite. Losses that are not finite are always
    above, and are left out of what later ones are compared with.
    """
    least: float | None = memory.get("minimum")
    recent: list[float] = list(memory.get("recent", ()))
    rows = []
    for step, loss in losses:
        if rule.reference == "minimum":
            earlier, told = least, "the least so far"
        else:
            earlier, told = (median(recent) if recent else None), f"the median of the {len(recent)} before"
        if earlier is not None:
            size = rule.above if rule.unit == "nats" else abs(earlier) * rule.above / 100
            told = f"{loss - earlier:.4g} nats above {told}"
            rows.append(Reading(step, Place(), loss, earlier + size, earlier + size * (1 - rule.recovery), told=told))
        else:
            rows.append(Reading(step, Place(), loss, sys.float_info.max, sys.float_info.max))
        if math.isfinite(loss):
            least = loss if least is None else min(least, loss)
            recent = [*recent, loss][-rule.window :]
    kept: dict[str, Any] = {"minimum": least} if rule.reference == "minimum" else {"recent": recent}
    return Readings(rows, kept, losses[-1][0] if losses else None)


def _reading(rule: AnyRule, step: int | None, place: Place, value: float, limit: float) -> Reading:
    margin = rule.recovery * abs(limit)
    return Reading(step, place, value, limit, limit + margin if below(rule) else limit - margin)


def _power_of_ten(log10: float) -> float:
    return 10.0**log10 if log10 < 308 else math.inf
