"""Variants: what a training run changes about attention, about its query gradient or about its weights.

No variant is the control. Several combine where that makes sense; ``refuse_conflicts`` says where it does not.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from services.contracts.attention_definition import Routing
from services.contracts.parameters import Parameters


class Natq(Parameters):
    """NATQ, equations 42-44 of "Stuck in a Loop": the query gradient times the damped inverse of the row's Fisher."""

    name: Literal["natq"] = "natq"
    solver: Annotated[
        Literal["exact", "cg"], Field(description="Cholesky of every query's matrix, or conjugate gradients")
    ] = "cg"
    damping: Annotated[float, Field(gt=0, le=100, description="λ in units of tr F / d; the article's is 0.1")] = 0.1
    tolerance: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="of cg: a row is done when its relative error is at most this, by the bound ‖r‖ / (λ‖x‖); the "
            "median error is about a fourth of it",
        ),
    ] = 0.03
    iterations: Annotated[int, Field(ge=1, le=1000, description="of cg: at most so many a row")] = 48
    fallback: Annotated[
        bool, Field(description="of cg: rows that are not done by then are solved exactly; they are counted either way")
    ] = True


class QkNorm(Parameters):
    """Queries and keys are normalised to root mean square 1 before the dot product, without a learned gain."""

    name: Literal["qk_norm"] = "qk_norm"
    scale: Annotated[
        float | None,
        Field(gt=0, le=1000, description="factor of the dot product; none is the model's own, 1/√d mostly"),
    ] = None


class SigmaReparam(Parameters):
    """Every linear layer's weight is W·γ/σ(W) with a learned γ, and σ the largest singular value by power iteration."""

    name: Literal["sigma_reparam"] = "sigma_reparam"


class SpectralNorm(Parameters):
    """The same with γ fixed at 1."""

    name: Literal["spectral_norm"] = "spectral_norm"


class Sigmoid(Parameters):
    """Sigmoid routing: each key gets sigmoid(score + bias), and weights need not add up to 1."""

    name: Literal["sigmoid"] = "sigmoid"
    bias: Annotated[
        float | None, Field(ge=-1000, le=1000, description="added to every score; none is −log of the row's length")
    ] = None


class SharedSigmoid(Parameters):
    """Sigmoid routing with scores averaged over the heads of a layer, equation 38."""

    name: Literal["shared_sigmoid"] = "shared_sigmoid"
    bias: Annotated[
        float | None, Field(ge=-1000, le=1000, description="added to every score; none is −log of the row's length")
    ] = None


class SharedSoftmax(Parameters):
    """Scores are averaged over the heads of a layer before the softmax, equation 34."""

    name: Literal["shared_softmax"] = "shared_softmax"


def _with_name(value: Any) -> Any:
    """A plain name stands for the variant with its defaults."""
    return {"name": value} if isinstance(value, str) else value


Variant = Annotated[
    Annotated[
        Natq | QkNorm | SigmaReparam | SpectralNorm | Sigmoid | SharedSigmoid | SharedSoftmax, Discriminator("name")
    ],
    BeforeValidator(_with_name),
]

ROUTINGS: dict[str, Routing] = {
    "sigmoid": "sigmoid",
    "shared_sigmoid": "shared_sigmoid",
    "shared_softmax": "shared_softmax",
}
_WEIGHTS = ("sigma_reparam", "spectral_norm")
CONTROL = "control"


def label_of(variants: Sequence[Any]) -> str:
    """The name that a combination of variants has in tables and on pages: ``control``, ``natq``, ``natq+qk_norm``."""
    return "+".join(variant.name for variant in variants) or CONTROL


def refuse_conflicts(variants: Sequence[Any]) -> None:
    """Raise ValueError for variants that exclude each other."""
    names = [variant.name for variant in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"variant {twice[0]!r} is given twice")
    for what, group in (("way of routing", tuple(ROUTINGS)), ("parametrization of the weights", _WEIGHTS)):
        chosen = [name for name in names if name in group]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} are each a {what}; a run has one")
    routing = next((name for name in names if name in ROUTINGS), None)
    if "natq" in names and routing is not None:
        raise ValueError(f"natq uses the Fisher matrix of a head's softmax row, which {routing} does not have")
