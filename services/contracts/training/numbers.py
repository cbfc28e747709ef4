"""What is measured of a run by step, as it is stored in ``training_metric`` and ``training_matrix``.

A row of layers is the mean over its heads, one of the model the mean over its layers. Spectral norms are by matrix.
The k-th step is step k; step 0 is the model as it started. Numbers of a step's pass (loss, gradient norm) are those
before its update, all others those after it.
"""

from dataclasses import dataclass
from typing import Literal

Level = Literal["head", "layer", "model"]


@dataclass(frozen=True)
class Measured:
    meaning: str
    levels: tuple[Level, ...] = ("model",)  # at which it is stored, the narrowest first


_ALL: tuple[Level, ...] = ("head", "layer", "model")
_BY_LAYER: tuple[Level, ...] = ("layer",)
METRICS: dict[str, Measured] = {
    "loss_nats": Measured("mean loss over the tokens of the step"),
    "learning_rate": Measured("learning rate of the step"),
    "gradient_norm": Measured("Euclidean norm of the step's gradient, before it was clipped"),
    "tokens_per_s": Measured("tokens trained on in a second since the row before, without validations and checkpoints"),
    "validation_loss_nats": Measured("mean loss over the held-out tokens"),
    "validation_bits_per_byte": Measured("the same per byte of their text, in bits"),
    "entropy_nats": Measured("mean entropy of the patterns' rows", _ALL),
    "top_weight": Measured("mean largest weight of a row", _ALL),
    "sink_mass": Measured("mean weight on key 0", _ALL),
    "local_mass": Measured("mean weight on keys i-7 … i", _ALL),
    "natq_residual_median": Measured("median over the step's rows of the bound on NATQ's relative error", _BY_LAYER),
    "natq_residual_max": Measured("the largest of them", _BY_LAYER),
    "natq_iterations": Measured("mean iterations of the rows that were solved", _BY_LAYER),
    "natq_fallback_share": Measured("share of them that were solved exactly instead", _BY_LAYER),
    "natq_zero_rows": Measured("rows without a gradient in a backward pass", _BY_LAYER),
}


@dataclass(frozen=True)
class Metric:
    step: int
    metric: str
    value: float
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Matrix:
    """Spectral norms of a weight and of its last update."""

    step: int
    layer: int | None
    matrix: str
    height: int
    width: int
    weight_sigma: float
    update_sigma: float | None
