"""The credit loop of "Stuck in a Loop": gradient descent on the value matrix and the scores of one query (26-33).

One query attends to n sources whose inputs x_j stay as they are. With a = softmax(s), v_j = V x_j, y = Σ_j a_j v_j,
δ = ∂L/∂y and A_j = −δ·(v_j − y), each step takes both gradients at the same point:

    V ← V − η_V δ x̃ᵀ, x̃ = Σ_j a_j x_j        s_j ← s_j + η_s a_j A_j

δ is constant (the loss is δ·y), or that of the loss ½‖y − target‖², which ends the loop when the target is reached.
"""

from dataclasses import dataclass

import numpy as np

from dashboard.examples.three_keys import Array, softmax


@dataclass(frozen=True)
class CreditLoop:
    """The model before its first step; exactly one of ``delta`` and ``target`` is given."""

    inputs: Array  # x [source, d_model]
    value_matrix: Array  # V [d_value, d_model]
    scores: Array  # s [source]
    value_rate: float = 1.0  # η_V
    score_rate: float = 1.0  # η_s
    delta: Array | None = None  # [d_value]
    target: Array | None = None  # [d_value]

    def __post_init__(self) -> None:
        if (self.delta is None) == (self.target is None):
            raise ValueError("give either delta or target")


@dataclass(frozen=True)
class Trajectory:
    """The model at every step, the state before the first one included: axes step, then source."""

    scores: Array  # [step, source]
    attention: Array  # [step, source]
    advantage: Array  # A [step, source]
    predicted_gain: Array  # ΔA by the next step on V alone, equation 29 [step, source]
    score_step: Array  # Δs of the next step, equation 30 [step, source]
    loss: Array  # [step]

    def log_odds(self, source: int, other: int) -> Array:
        """log(a_source / a_other), which is the gap of their scores."""
        return self.scores[:, source] - self.scores[:, other]

    def log_odds_to_rest(self, source: int) -> Array:
        """log(a_source / (1 − a_source))."""
        others = np.delete(self.scores, source, axis=1)
        largest = others.max(1, keepdims=True)
        rest = largest[:, 0] + np.log(np.exp(others - largest).sum(1))
        return self.scores[:, source] - rest


def start(
    gaps: Array,
    advantages: Array,
    *,
    similarity: float = 0.0,
    value_rate: float = 1.0,
    score_rate: float = 1.0,
    target: float | None = None,
) -> CreditLoop:
    """A loop of unit inputs with the given similarity (cosine) between any two, and one-dimensional values.

    ``gaps`` are the first scores. δ = −1: a larger value is better, and A_j = v_j − y. ``advantages`` are those at the
    start up to a common shift: they are the values themselves. With a target the loss is ½(y − target)² instead.
    """
    count = len(gaps)
    if not -1 / (count - 1) < similarity < 1:
        raise ValueError(f"{count} unit inputs cannot all have cosine {similarity}")
    gram = np.full((count, count), similarity) + (1 - similarity) * np.eye(count)
    inputs = np.linalg.cholesky(gram)
    return CreditLoop(
        inputs=inputs,
        value_matrix=np.linalg.solve(inputs, np.asarray(advantages, float))[None],
        scores=np.asarray(gaps, float),
        value_rate=value_rate,
        score_rate=score_rate,
        delta=None if target is not None else np.array([-1.0]),
        target=None if target is None else np.array([target]),
    )


def play(loop: CreditLoop, steps: int) -> Trajectory:
    """Take that many steps of gradient descent."""
    matrix, scores = loop.value_matrix.astype(float), loop.scores.astype(float)
    record: list[tuple[Array, ...]] = []
    for _ in range(steps + 1):
        attention = softmax(scores)
        values = loop.inputs @ matrix.T
        output = attention @ values
        if loop.target is not None:
            delta = output - loop.target
            loss = delta @ delta / 2
        else:
            assert loop.delta is not None
            delta = loop.delta
            loss = delta @ output
        mixed = attention @ loop.inputs
        advantage = -(values - output) @ delta
        gain = loop.value_rate * (delta @ delta) * ((loop.inputs - mixed) @ mixed)
        step = loop.score_rate * attention * advantage
        record.append((scores, attention, advantage, gain, step, np.asarray(loss)))
        matrix = matrix - loop.value_rate * np.outer(delta, mixed)
        scores = scores + step
    return Trajectory(*(np.stack(column) for column in zip(*record, strict=True)))
