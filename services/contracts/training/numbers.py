"""What is measured of a run by step, as it is stored in ``training_metric`` and ``training_matrix``.

The k-th step is step k; step 0 is the model as it started. Numbers of a step's pass (loss, gradient norm) are those
before its update, all others those after it.
"""

from dataclasses import dataclass

# name: meaning; by layer and head where the second says so
METRICS: dict[str, str] = {
    "loss_nats": "mean loss over the tokens of the step",
    "learning_rate": "learning rate of the step",
    "gradient_norm": "Euclidean norm of the step's gradient, before it was clipped",
    "tokens_per_s": "tokens trained on in a second since the row before, without validations and checkpoints",
    "validation_loss_nats": "mean loss over the held-out tokens",
    "validation_bits_per_byte": "the same per byte of their text, in bits",
    "entropy_nats": "mean entropy of the patterns' rows",
    "top_weight": "mean largest weight of a row",
    "sink_mass": "mean weight on key 0",
    "local_mass": "mean weight on keys i-7 … i",
    "natq_residual_median": "median over the step's rows of the bound on NATQ's relative error",
    "natq_residual_max": "the largest of them",
    "natq_iterations": "mean iterations of the rows that were solved",
    "natq_fallback_share": "share of them that were solved exactly instead",
    "natq_zero_rows": "rows without a gradient in a backward pass",
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
