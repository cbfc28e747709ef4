"""The three-key example of "Stuck in a Loop": one query in a plane, and how softmax locks its gradient (17-24).

A query q sees three keys k_j with values v_j under attention weights a = softmax(logits + (q·k_j)/√d) at q = 0, d = 2.
The loss is ½‖y − target‖², so that δ = ∂L/∂y = y − target. Then

    ∇_q L = (1/√d) Σ_j a_j (δ·(v_j − y)) k_j = Jᵀ δ        J = ∂y/∂q = (1/√d) Σ_j a_j (v_j − y) k_jᵀ
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

D = 2  # width of query and keys
Array = NDArray[np.floating]

KEYS = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # equation 17


@dataclass(frozen=True)
class ThreeKeys:
    """What the playground can move."""

    logits: Array  # [key]; the attention weights are their softmax
    keys: Array  # [key, d]
    values: Array  # [key, d_value]
    target: Array  # [d_value], where the output should be


@dataclass(frozen=True)
class Picture:
    """All that follows from an example."""

    attention: Array  # a [key]
    output: Array  # y [d_value]
    delta: Array  # ∂L/∂y [d_value]
    advantage: Array  # −δ·(v_j − y) [key]
    contributions: Array  # each key's share of the query update [key, d], equation 15
    update: Array  # −∇_q L [d]
    jacobian: Array  # ∂y/∂q [d_value, d], equation 24
    singular_values: Array  # of the Jacobian, the largest first
    output_axes: Array  # [d_value, axis], by singular value: directions the output moves in
    query_axes: Array  # [d, axis]: the moves of the query that do it

    @property
    def loss(self) -> float:
        return float(self.delta @ self.delta) / 2

    @property
    def flatness(self) -> float:
        """Smallest over largest singular value; 0 where nothing is transmitted."""
        return float(self.singular_values[-1] / self.singular_values[0]) if self.singular_values[0] > 0 else 0.0


def deadlock(epsilon: float, advantage: float) -> ThreeKeys:
    """The softmax deadlock: the third key has weight ε and advantage M, the other two share the rest (17-21).

    Values are the keys themselves: with y = (0, ε) and δ = (0, −M/(1 − ε)) the first two keys have equal advantages.
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is a weight between 0 and 1, not {epsilon}")
    attention = np.array([(1 - epsilon) / 2, (1 - epsilon) / 2, epsilon])
    target = np.array([0.0, epsilon + advantage / (1 - epsilon)])
    return ThreeKeys(np.log(attention), KEYS.copy(), KEYS.copy(), target)


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def picture(example: ThreeKeys) -> Picture:
    """Attention, advantages, query update and Jacobian of an example."""
    attention = softmax(example.logits)
    output = attention @ example.values
    delta = output - example.target
    offsets = example.values - output
    advantage = -offsets @ delta
    contributions = (attention * advantage)[:, None] * example.keys / np.sqrt(D)
    jacobian = (attention[:, None] * offsets).T @ example.keys / np.sqrt(D)
    output_axes, singular_values, query_axes = np.linalg.svd(jacobian)
    return Picture(
        attention=attention,
        output=output,
        delta=delta,
        advantage=advantage,
        contributions=contributions,
        update=contributions.sum(0),
        jacobian=jacobian,
        singular_values=singular_values,
        output_axes=output_axes,
        query_axes=query_axes.T,
    )


def ellipse(jacobian: Array, points: int = 121) -> Array:
    """Where unit moves of the query take the output, in units of the largest singular value, [point, d_value]."""
    angle = np.linspace(0, 2 * np.pi, points)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    image = circle @ jacobian.T
    largest = np.linalg.norm(jacobian, 2)
    return image / largest if largest > 0 else image
