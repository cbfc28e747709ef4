"""What pages call the numbers of training runs, what they mean, and how their values read."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard.formats import NOTHING

Words = Callable[[float | None], str]


def decimals(digits: int) -> Words:
    return lambda value: NOTHING if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def digits(value: float | None) -> str:
    """Four digits, whatever the size."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.4g}"


def signed(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:+.4g}"


@dataclass(frozen=True)
class TrainingMetric:
    name: str
    label: str
    meaning: str
    words: Words = digits


VALIDATION_LOSS, LOSS, BITS = "validation_loss_nats", "loss_nats", "validation_bits_per_byte"
ATTENTION = ("entropy_nats", "top_weight", "local_mass", "sink_mass")
SOLVER = (
    "natq_residual_median",
    "natq_residual_max",
    "natq_iterations",
    "natq_fallback_share",
    "natq_zero_rows",
)
_KNOWN = {
    metric.name: metric
    for metric in (
        TrainingMetric(
            VALIDATION_LOSS,
            "validation loss (nats)",
            "mean loss of the held-out tokens, the same ones at every step",
            decimals(4),
        ),
        TrainingMetric(LOSS, "training loss (nats)", "loss of the step's own sequences, before the step", decimals(4)),
        TrainingMetric(
            BITS,
            "validation bits per byte",
            "the validation loss per byte of text, comparable across tokenizers",
            decimals(4),
        ),
        TrainingMetric("learning_rate", "learning rate", "as the schedule has it at the step"),
        TrainingMetric("gradient_norm", "gradient norm", "of all parameters together, before clipping"),
        TrainingMetric("tokens_per_s", "tokens per second", "of training alone", decimals(0)),
        TrainingMetric("entropy_nats", "attention entropy (nats)", "entropy of a query's attention", decimals(3)),
        TrainingMetric("top_weight", "top weight", "largest weight of a query", decimals(3)),
        TrainingMetric(
            "local_mass", "local mass", "weight on the eight nearest keys, the query's own included", decimals(3)
        ),
        TrainingMetric("sink_mass", "sink mass", "weight on key 0", decimals(3)),
        TrainingMetric(
            "natq_residual_median",
            "median residual",
            "bound on the relative error of what the solver gives a row, median of rows",
        ),
        TrainingMetric("natq_residual_max", "largest residual", "the same of the worst row"),
        TrainingMetric("natq_iterations", "iterations", "of conjugate gradients, mean of rows", decimals(1)),
        TrainingMetric("natq_fallback_share", "fallbacks", "share of rows that were solved exactly instead"),
        TrainingMetric(
            "natq_zero_rows", "rows left as they are", "in one pass: their gradient or their Fisher matrix is 0"
        ),
    )
}


def named(name: str) -> TrainingMetric:
    """A metric that the pages do not know goes by its own name."""
    return _KNOWN.get(name) or TrainingMetric(name, name.replace("_", " "), "")


def in_order(names: Sequence[str]) -> list[str]:
    """Known ones first, in the order above, then the rest by name."""
    places = {name: place for place, name in enumerate(_KNOWN)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))
