"""The text form of rules, as people write them on a command line: read, and written."""

import math
import re
from typing import Any, get_args

from services.contracts.rules import (
    TRAINING,
    AnyRule,
    EntropyMarginRule,
    Level,
    LossJumpRule,
    MetricRule,
    RuleFields,
    SigmaRule,
    Statistic,
)

GRAMMAR = """\
METRIC [head|layer|model] [STATISTIC] below|above NUMBER    entropy_nats head below 0.5
[training|validation] loss jump NUMBER [nats|%] [over minimum|median [of N]]    loss jump 0.5
sigma [of weights|updates|scores|product] [matrix NAME] above NUMBER    sigma of product above 1e4
entropy within NUMBER [nats] of bound [head|layer|model] [minimum]    entropy within 0.1 of bound
METRIC is the name of one, or PROBE.METRIC, or training.METRIC. STATISTIC, of a probe's metric: mean, minimum, q01, q05,
q25, median, q75, q95, q99 or maximum. Any rule may end in: recovering NUMBER%"""

_LEVELS = get_args(Level)
_STATISTICS = get_args(Statistic)
_SHORT = {"min": "minimum", "max": "maximum"}
_RECOVERY = RuleFields.model_fields["recovery"].default
_WINDOW = LossJumpRule.model_fields["window"].default


class _Words:
    """The words of a rule, taken one by one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = re.sub(r"(?<=[\d.])(%|nats?\b)", r" \1", text).split()

    def wrong(self, why: str) -> ValueError:
        return ValueError(f"{self._text[:200]!r} is no rule: {why}. Rules read\n{GRAMMAR}")

    def next(self) -> str | None:
        return self._words[0] if self._words else None

    def take(self, *allowed: str) -> str | None:
        """The next word if it is one of these, in any case of letters."""
        if self._words and self._words[0].lower() in allowed:
            return self._words.pop(0).lower()
        return None

    def need(self, what: str, *allowed: str) -> str:
        found = self.take(*allowed)
        if found is None:
            raise self.wrong(
                f"{what} is missing before {self._words[0]!r}" if self._words else f"it ends before {what}"
            )
        return found

    def word(self, what: str) -> str:
        if not self._words:
            raise self.wrong(f"it ends before {what}")
        return self._words.pop(0)

    def number(self) -> float:
        text = self.word("a number")
        try:
            number = float(text)
        except ValueError:
            raise self.wrong(f"{text!r} is no number") from None
        if not math.isfinite(number):
            raise self.wrong(f"{text!r} is no finite number")
        return number

    def end(self) -> None:
        if self._words:
            raise self.wrong(f"{' '.join(self._words)!r} is too much")


def parse(text: str) -> dict[str, Any]:
    """The fields of the rule that a text describes; raises ValueError that tells the grammar."""
    words = _Words(text)
    if "\0" in text:
        raise words.wrong("it has a NUL character")
    first, second = (words.next() or "").lower(), (text.split()[1:2] or [""])[0].lower()
    if first in ("training", "validation", "loss") and "jump" in text.lower().split()[1:3]:
        found = _loss_jump(words)
    elif first == "sigma":
        found = _sigma(words)
    elif (first, second) == ("entropy", "within"):
        found = _margin(words)
    else:
        found = _metric(words)
    if words.take("recovering"):
        found["recovery"] = words.number() / 100
        words.need("%", "%")
    words.end()
    return {name: value for name, value in found.items() if value is not None}


def _metric(words: _Words) -> dict[str, Any]:
    of, _, metric = words.word("the name of a metric").rpartition(".")
    level, statistic = None, None
    while (word := words.take(*_LEVELS, *_STATISTICS, *_SHORT)) is not None:
        if word in _LEVELS:
            level = word
        else:
            statistic = _SHORT.get(word, word)
    side = words.need("below or above", "below", "above")
    return {
        "type": "metric",
        "metric": metric,
        "of": of or None,
        "level": level,
        "statistic": statistic,
        side: words.number(),
    }


def _loss_jump(words: _Words) -> dict[str, Any]:
    loss = words.take("training", "validation")
    words.need("loss", "loss")
    words.need("jump", "jump")
    above = words.number()
    unit = "percent" if words.take("nats", "nat", "%", "percent") in ("%", "percent") else "nats"
    over = words.need("minimum or median", "minimum", "median") if words.take("over") else None
    window = None
    if over == "median" and words.take("of"):
        size = words.number()
        if not size.is_integer():
            raise words.wrong(f"a median is of a whole number of values, not {size:g}")
        window = int(size)
    return {"type": "loss_jump", "loss": loss, "above": above, "unit": unit, "over": over, "window": window}


def _sigma(words: _Words) -> dict[str, Any]:
    words.need("sigma", "sigma")
    kinds = ("weights", "updates", "scores", "product")
    of = words.need("weights, updates, scores or product", *kinds) if words.take("of") else None
    matrix = words.word("the name of a matrix") if words.take("matrix") else None
    words.need("above", "above")
    return {"type": "sigma", "of": of, "matrix": matrix, "above": words.number()}


def _margin(words: _Words) -> dict[str, Any]:
    words.need("entropy", "entropy")
    words.need("within", "within")
    within = words.number()
    words.take("nats", "nat")
    words.need("of", "of")
    words.take("its")
    words.need("bound", "bound")
    level = words.take(*_LEVELS)
    statistic = words.take("minimum", "min")
    return {
        "type": "entropy_margin",
        "within_nats": within,
        "level": level,
        "statistic": "minimum" if statistic else None,
    }


def written(rule: AnyRule) -> str:
    """The text that reads as the rule."""
    match rule:
        case MetricRule():
            name = f"{rule.of}.{rule.metric}" if rule.of else rule.metric
            side = "above" if rule.below is None else "below"
            statistic = None if rule.statistic == "mean" or rule.of == TRAINING else rule.statistic
            parts = [name, rule.level, statistic, side, _number(rule.threshold)]
        case LossJumpRule():
            size = f"{_number(rule.above)}{'%' if rule.unit == 'percent' else ' nats'}"
            over = f"over {rule.over}" if rule.over else None
            if rule.reference == "median" and rule.window != _WINDOW:
                over = f"over median of {rule.window}"
            parts = [rule.loss, "loss jump", size, over]
        case SigmaRule():
            matrix = f"matrix {rule.matrix}" if rule.matrix else None
            parts = ["sigma of", rule.of, matrix, "above", _number(rule.above)]
        case EntropyMarginRule():
            minimum = "minimum" if rule.statistic == "minimum" else None
            parts = ["entropy within", _number(rule.within_nats), "nats of bound", rule.level, minimum]
    if rule.recovery != _RECOVERY:
        parts.append(f"recovering {_number(100 * rule.recovery)}%")
    return " ".join(part for part in parts if part)


def _number(value: float) -> str:
    return f"{value:.12g}"
