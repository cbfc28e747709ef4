"""Rules of watches: what a number must do for an alert to be raised. Their text form is in ``rule_texts``.

metric          a number of a probe's summaries or of the training is below or above a value
loss_jump       the training or validation loss is above what it was by some nats or percent
sigma           a spectral norm, or the norm of rows of scores, is above a value
entropy_margin  entropy is within some nats of the least that its scores allow
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.contracts.kinds import KINDS, result_tables
from services.contracts.printable import NAME_PATTERN
from services.contracts.training.numbers import METRICS as TRAINING_METRICS
from services.contracts.training.numbers import Level

Statistic = Literal["mean", "minimum", "q01", "q05", "q25", "median", "q75", "q95", "q99", "maximum"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

TRAINING = "training"  # the kind whose metrics are numbers by step and no summaries
BOUND_PROBE = "entropy_bound"
_LEVELS: tuple[Level, ...] = ("head", "layer", "model")


def levels_of(origin: str, metric: str) -> tuple[Level, ...]:
    """The levels at which the metric is known, the narrowest first; none if the origin has no such metric."""
    if origin == TRAINING:
        return TRAINING_METRICS[metric].levels if metric in TRAINING_METRICS else ()
    if origin not in KINDS:
        return ()
    key = next((result_tables()[each.table].key for each in KINDS[origin].metrics if each.name == metric), None)
    if key is None:
        return ()
    return tuple(level for level in _LEVELS if level == "model" or level in key)


def origins_of(metric: str) -> list[str]:
    """Probes that measure the metric, and ``training`` if a run has it."""
    return [origin for origin in KINDS if levels_of(origin, metric)]


def metrics_of(origin: str) -> list[str]:
    return list(TRAINING_METRICS) if origin == TRAINING else [metric.name for metric in KINDS[origin].metrics]


class RuleFields(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    recovery: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="share of the threshold by which a number must go back past it before the rule can raise "
            "another alert at the same place",
        ),
    ] = 0.1

    def origin(self) -> str | None:
        """The probe that measures what the rule is about, or ``training``; None if that is open."""
        raise NotImplementedError


class MetricRule(RuleFields):
    """A number is below or above a value."""

    type: Literal["metric"] = "metric"
    metric: Annotated[str, Field(max_length=100, description="a metric of a probe, or of the training")]
    of: Annotated[
        str | None,
        Field(
            max_length=100,
            description="the probe that measures it, or training; if left out, the watch's probe that does, else "
            "the training",
        ),
    ] = None
    level: Annotated[Level | None, Field(description="the narrowest that the metric has if left out")] = None
    statistic: Annotated[
        Statistic | None, Field(description="of a probe's summary; the mean if left out. Numbers of training have none")
    ] = None
    below: Finite | None = None
    above: Finite | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        origins = origins_of(self.metric)
        if self.of is None and not origins:
            near = get_close_matches(self.metric, [each for one in KINDS for each in metrics_of(one)], 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no metric {self.metric!r}{meant}; {_listed()}")
        if self.of is not None and self.of not in origins:
            where = f"; {self.metric} is of {', '.join(origins)}" if origins else ""
            raise ValueError(f"{self.of!r} has no metric {self.metric!r}{where}; {_listed(self.of)}")
        levels = [levels_of(origin, self.metric) for origin in ([self.of] if self.of else origins)]
        if self.level and not any(self.level in each for each in levels):
            raise ValueError(f"{self.metric} is not known by {self.level}, only by {' and by '.join(levels[0])}")
        if self.of == TRAINING and self.statistic is not None:
            raise ValueError(f"numbers of the training have no {self.statistic}: there is one a step; leave it out")
        if (self.below is None) == (self.above is None):
            raise ValueError(f"the rule on {self.metric} needs either below or above")
        return self

    def origin(self) -> str | None:
        return self.of

    @property
    def threshold(self) -> float:
        limit = self.above if self.below is None else self.below
        assert limit is not None, "the validator saw to it"
        return limit

    def settled(self, of: str, level: Level) -> Self:
        """The same with nothing left out."""
        statistic = None if of == TRAINING else self.statistic or "mean"
        return type(self)(**{**self.model_dump(), "of": of, "level": level, "statistic": statistic})


def settled(rule: MetricRule, kinds: Iterable[str], *, of_runs: bool) -> MetricRule:
    """The rule with nothing left open, for a watch with probes of these kinds; raises ValueError if none fits."""
    candidates = [rule.of] if rule.of else [*kinds, *([TRAINING] if of_runs else [])]
    for of in candidates:
        levels = levels_of(of, rule.metric)
        if levels and (rule.level or levels[0]) in levels and not (of == TRAINING and rule.statistic):
            return rule.settled(of, rule.level or levels[0])
    asked = " ".join(part for part in (rule.metric, rule.level, rule.statistic) if part)
    raise ValueError(
        f"nothing that this watch looks at measures {asked!r}; {rule.metric} is of {', '.join(origins_of(rule.metric))}"
    )


class LossJumpRule(RuleFields):
    """The loss is above what it was before: above the least, or the median of the latest, of the earlier values."""

    type: Literal["loss_jump"] = "loss_jump"
    loss: Literal["training", "validation"] = "training"
    above: Annotated[Positive, Field(description="by how much")]
    unit: Annotated[Literal["nats", "percent"], Field(description="percent are those of the earlier loss")] = "nats"
    over: Annotated[
        Literal["minimum", "median"] | None,
        Field(
            description="what it is compared with: the least of all earlier values, or the median of the latest; if "
            "left out the median for the training loss, whose batches scatter, and the minimum for the validation loss"
        ),
    ] = None
    window: Annotated[int, Field(ge=2, le=1000, description="values that the median is of")] = 20

    def origin(self) -> str:
        return TRAINING

    @property
    def metric(self) -> str:
        return "loss_nats" if self.loss == "training" else "validation_loss_nats"

    @property
    def reference(self) -> Literal["minimum", "median"]:
        return self.over or ("median" if self.loss == "training" else "minimum")


class SigmaRule(RuleFields):
    """A spectral norm is above a value: of a run's weights or their updates; or the norm of scores, or its bound."""

    type: Literal["sigma"] = "sigma"
    of: Annotated[
        Literal["weights", "updates", "scores", "product"],
        Field(
            description="weights: largest singular value of each matrix of a run; updates: of the change by its last "
            "step; scores: norm of a row's centred scores, and product: its upper bound by weights and inputs, both "
            "by head, out of the probe entropy_bound, geometric means over sequences"
        ),
    ] = "weights"
    matrix: Annotated[
        str | None,
        Field(
            max_length=100,
            pattern=NAME_PATTERN,
            description="of weights and updates, only matrices of that name, such as q",
        ),
    ] = None
    above: Positive

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.matrix is not None and self.of not in ("weights", "updates"):
            raise ValueError(f"sigma of {self.of} has no matrix; got {self.matrix!r}")
        return self

    def origin(self) -> str:
        return TRAINING if self.of in ("weights", "updates") else BOUND_PROBE

    @property
    def metric(self) -> str:
        return {"weights": "weight_sigma", "updates": "update_sigma", "scores": "log10_sigma"}.get(
            self.of, "log10_sigma_product"
        )


class EntropyMarginRule(RuleFields):
    """Entropy is within so many nats of the least that the scores of its row allow (probe entropy_bound)."""

    type: Literal["entropy_margin"] = "entropy_margin"
    within_nats: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    statistic: Annotated[
        Literal["mean", "minimum"], Field(description="over queries and sequences: of the mean, or of the nearest row")
    ] = "mean"
    level: Level = "head"

    def origin(self) -> str:
        return BOUND_PROBE

    @property
    def metric(self) -> str:
        return "gap_mean" if self.statistic == "mean" else "gap_min"


AnyRule = MetricRule | LossJumpRule | SigmaRule | EntropyMarginRule
Rule = Annotated[AnyRule, Field(discriminator="type")]


def _listed(origin: str | None = None) -> str:
    origins = [origin] if origin in KINDS else list(KINDS)
    told = [f"{each}: {', '.join(metrics_of(each))}" for each in origins if metrics_of(each)]
    return "metrics by what measures them: " + "; ".join(told) if told else f"{origin} has no metrics"
