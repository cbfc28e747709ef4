"""Sweeps: one training with several settings, variants and seeds, and what each of its members is.

Members are made seed by seed: every variant with every setting of the first seed comes before the second seed, so that
an early look sees the whole grid, and the later seeds of a hopeless setting need not be trained.
"""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from services.contracts.parameters import Parameters
from services.contracts.training.variants import CONTROL, Variant, label_of, refuse_conflicts

MOST_MEMBERS = 1000
_MOST_LEVELS = 20  # of objects and lists within a value; parameters have four
_OWN_FIELDS = {"seed": "seeds", "variants": "variants"}


class Range(Parameters):
    """An axis of a random search: values between two numbers."""

    low: float
    high: float
    scale: Annotated[
        Literal["log", "linear"], Field(description="whether factors or differences are equally likely")
    ] = "log"
    whole: Annotated[bool, Field(description="whole numbers only")] = False

    @model_validator(mode="after")
    def _something_between(self) -> Self:
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"low {self.low:g} must be less than high {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low is {self.low:g}: a logarithmic scale begins above 0; give scale linear")
        return self

    def value(self, share: float) -> float | int:
        """The value at ``share`` of the way, 0 to 1, to four digits."""
        if self.scale == "log":
            exact = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            exact = self.low + share * (self.high - self.low)
        return round(exact) if self.whole else float(f"{exact:.4g}")


class EarlyStopping(Parameters):
    """When a setting of a variant is given up: its members that have not ended are cancelled, their checkpoints kept.

    Settings are compared within a variant by the mean validation loss, at the same step, of their seeds so far.
    """

    after_steps: Annotated[
        list[Annotated[int, Field(ge=1)]],
        BeforeValidator(lambda value: [value] if isinstance(value, int) else value),
        Field(min_length=1, max_length=50, description="steps at which settings are compared; each has a validation"),
    ]
    worse_by_nats: Annotated[
        float | None, Field(gt=0, description="a setting stops whose loss is larger than the best's by more than this")
    ] = None
    keep_fraction: Annotated[
        float | None,
        Field(gt=0, lt=1, description="of the settings that have come to the step, the best such fraction goes on"),
    ] = None

    @model_validator(mode="after")
    def _some_rule(self) -> Self:
        if self.worse_by_nats is None and self.keep_fraction is None:
            raise ValueError("give worse_by_nats or keep_fraction: without either no setting is ever hopeless")
        return self


def _combination(value: Any) -> Any:
    """``"control"``, ``"natq+qk_norm"``, one variant with options, or a list of variants, as a list."""
    if value == CONTROL or value == [CONTROL]:
        return []
    if isinstance(value, str):
        return value.split("+")
    return [value] if isinstance(value, dict) else value


def _not_deep(value: Any) -> Any:
    """Refuse what is nested so deeply that it can be parsed and not be written again."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")


Combination = Annotated[list[Variant], Field(max_length=8), BeforeValidator(_combination)]
AxisName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}(\.[a-z][a-z0-9_]{0,60}){0,5}$", description="a parameter, dotted")
]
AS_LIST, AS_RANGE = "[list]", "[range]"  # of an axis, in locations of errors
Axis = Annotated[
    Annotated[list[Any], Field(min_length=1, max_length=100), AfterValidator(_not_deep), Tag(AS_LIST)]
    | Annotated[Range, Tag(AS_RANGE)],
    Discriminator(lambda value: AS_RANGE if isinstance(value, dict | Range) else AS_LIST),
]


@dataclass(frozen=True)
class Member:
    variant: str  # label, unique to its combination of variants
    setting: Mapping[str, Any]  # value on every axis
    seed: int
    parameters: dict[str, Any]  # of the training job

    @property
    def label(self) -> str:
        """What the member is but for its seed, in words: ``natq, learning_rate 0.001, weight_decay 0.1``."""
        return ", ".join([self.variant, *settings_in_words(self.setting)])


class Sweep(BaseModel):
    """What the members of a sweep share, and in what they differ."""

    model_config = ConfigDict(extra="forbid", strict=True)

    parameters: Annotated[
        dict[str, Any], AfterValidator(_not_deep), Field(description="of the training, for all members")
    ] = {}
    axes: Annotated[
        dict[AxisName, Axis],
        Field(
            max_length=8,
            description="values by parameter, such as {'optimizer.learning_rate': [0.001, 0.003]}; with search random "
            "also a range {'low': 0.0001, 'high': 0.01}",
        ),
    ] = {}
    variants: Annotated[
        list[Combination],
        Field(
            min_length=1,
            max_length=50,
            description="combinations of variants: control, a name, names joined by +, or a list with options",
        ),
    ] = [[]]
    seeds: Annotated[
        list[Annotated[int, Field(ge=0, le=2**31 - 1)]],
        Field(min_length=1, max_length=100, description="two or more tell how much runs differ by chance"),
    ] = [0]
    search: Annotated[Literal["grid", "random"], Field(description="all settings, or some of them by chance")] = "grid"
    samples: Annotated[int | None, Field(ge=1, le=MOST_MEMBERS, description="of random: how many settings")] = None
    search_seed: Annotated[int, Field(ge=0, le=2**31 - 1, description="of random: seed of the choice")] = 0
    early_stopping: EarlyStopping | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.axes:
            own = _OWN_FIELDS.get(name.partition(".")[0])
            if own is not None:
                raise ValueError(f"{name} is no axis: give {own} for that")
            within = next((other for other in self.axes if other.startswith(f"{name}.")), None)
            if within is not None:
                raise ValueError(f"the axis {within} is part of the axis {name}; give both values in {name}")
        for name in _OWN_FIELDS.keys() & self.parameters.keys():
            raise ValueError(f"parameters has {name}: give {_OWN_FIELDS[name]} for that")
        for what, values in (("seeds", self.seeds), *((name, each) for name, each in self.axes.items())):
            if isinstance(values, list) and len({_key(value) for value in values}) < len(values):
                raise ValueError(f"{what} has a value twice: {values}")
        for combination in self.variants:
            refuse_conflicts(combination)
        self._refuse_search()
        number = self._settings() * len(self.variants) * len(self.seeds)
        if number > MOST_MEMBERS:
            raise ValueError(f"the sweep has {number} members; {MOST_MEMBERS} is the most")
        variant_labels(self.variants)
        return self

    def _refuse_search(self) -> None:
        ranges = [name for name, axis in self.axes.items() if isinstance(axis, Range)]
        if self.search == "grid":
            if ranges:
                raise ValueError(f"{ranges[0]} is a range, which search random takes; a grid needs a list of values")
            if self.samples is not None:
                raise ValueError("samples is for search random; a grid takes every setting")
            return
        if self.samples is None or not self.axes:
            raise ValueError("search random needs axes, and samples: how many settings it takes")
        if not ranges and self.samples > self._grid():
            raise ValueError(f"samples is {self.samples}, but the axes have only {self._grid()} settings")

    def _grid(self) -> int:
        return math.prod(len(axis) for axis in self.axes.values() if isinstance(axis, list))

    def _settings(self) -> int:
        return self._grid() if self.samples is None else self.samples

    def settings(self) -> list[dict[str, Any]]:
        """Values on the axes: every combination, or those drawn; the same for all variants and seeds."""
        if self.search == "grid":
            lists = [axis for axis in self.axes.values() if isinstance(axis, list)]
            return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*lists)]
        chance = random.Random(self.search_seed)  # noqa: S311  # no secret; random() is the same in every version
        drawn: dict[str, dict[str, Any]] = {}
        for _ in range(100 * MOST_MEMBERS):
            setting = {name: _drawn(axis, chance.random()) for name, axis in self.axes.items()}
            drawn.setdefault(_key(setting), setting)
            if len(drawn) == self.samples:
                return list(drawn.values())
        raise ValueError(f"the ranges hold fewer than {self.samples} different settings; widen them or draw fewer")

    def members(self) -> Iterator[Member]:
        """Every member, in the order in which they are trained."""
        settings, labels = self.settings(), variant_labels(self.variants)
        for seed, setting, (label, combination) in itertools.product(
            self.seeds, settings, zip(labels, self.variants, strict=True)
        ):
            variants = [
                each.model_dump(mode="json", exclude_defaults=True) | {"name": each.name} for each in combination
            ]
            parameters = _placed(self.parameters | {"variants": variants, "seed": seed}, setting)
            yield Member(label, setting, seed, parameters)


def variant_labels(variants: Sequence[Sequence[Any]]) -> list[str]:
    """A label for each combination, with options where names alone would not tell it from another one."""
    names = [label_of(combination) for combination in variants]
    labels = [
        name if names.count(name) == 1 else "+".join(map(_with_options, combination)) or CONTROL
        for name, combination in zip(names, variants, strict=True)
    ]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"the variant {twice[0]} is given twice")
    return labels


def settings_in_words(setting: Mapping[str, Any]) -> list[str]:
    """``learning_rate 0.001`` for each axis: the last part of its name where no other axis has the same."""
    short = [name.rpartition(".")[2] for name in setting]
    return [
        f"{name if short.count(brief) > 1 else brief} {_in_words(value)}"
        for (name, value), brief in zip(setting.items(), short, strict=True)
    ]


def _in_words(value: Any) -> str:
    plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return value if plain else json.dumps(value)


def _with_options(variant: Any) -> str:
    options = variant.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    told = ", ".join(f"{name} {value}" for name, value in options.items())
    return f"{variant.name} ({told})" if told else variant.name


def _drawn(axis: list[Any] | Range, share: float) -> Any:
    return axis.value(share) if isinstance(axis, Range) else axis[int(share * len(axis))]


def _placed(parameters: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the values of dotted names in them; a name that stands for an object becomes that object."""
    result = dict(parameters)
    for dotted, value in setting.items():
        *path, last = dotted.split(".")
        place = result
        for part in path:
            known = place.get(part)
            place[part] = dict(known) if isinstance(known, dict) else {"name": known} if isinstance(known, str) else {}
            place = place[part]
        place[last] = value
    return result


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
