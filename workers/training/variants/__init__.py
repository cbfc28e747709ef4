"""Variants of a run, installed on a model: its attention's definition, its query gradient, its parametrization.

One file each: what it does, where it comes from. ``install`` puts them together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.variants import (
    Natq,
    QkNorm,
    SharedSigmoid,
    SharedSoftmax,
    SigmaReparam,
    Sigmoid,
    SpectralNorm,
    Variant,
    refuse_conflicts,
)
from workers.attention import seam
from workers.training.variants import natq, qk_norm, routing, sigma_reparam, spectral_norm
from workers.training.variants.plain_weights import plain_weights


@dataclass(frozen=True)
class Installed:
    """What a model's variants ask of the loop."""

    definition: AttentionDefinition  # bound to the seam; goes into config.json
    query_gradient: seam.QueryGradient | None  # for ``seam.observing`` in training passes
    effective_weights: Callable[[], dict[str, Tensor]]  # state of the plain model, parametrizations folded in
    after_step: Callable[[], None]  # once after every optimizer step
    log: Callable[[], list[tuple[str, int | None, float]]]  # (metric, layer, value) since the last call


def install(model: PreTrainedModel, variants: Sequence[Variant], *, pretrained: bool = False) -> Installed:
    """Change the model as the variants say; it must be attached to the seam.

    ``pretrained`` models keep their function under σReparam (γ starts at σ(W)); others start from γ = 1. A model that
    has a definition of its own keeps what no variant changes. Raises ValueError for variants that exclude each other,
    KeyholeError (model_unsupported) where the model has not what one of them changes.
    """
    refuse_conflicts(variants)
    definition = seam.defined(model)
    for variant in variants:
        if isinstance(variant, QkNorm):
            definition = qk_norm.changed(definition, variant)
        if isinstance(variant, Sigmoid | SharedSigmoid | SharedSoftmax):
            definition = routing.changed(definition, variant)
    query_gradient = None
    log: Callable[[], list[tuple[str, int | None, float]]] = list
    after_step: Callable[[], None] = _nothing
    for variant in variants:
        match variant:
            case Natq():
                _require_softmax(definition)
                solver_log = natq.SolverLog()
                query_gradient, log = natq.query_gradient(variant, solver_log), solver_log.rows
            case SigmaReparam():
                after_step = sigma_reparam.install(model, pretrained=pretrained)
            case SpectralNorm():
                after_step = spectral_norm.install(model)
            case _:
                pass  # in the definition already
    seam.define(model, definition)
    return Installed(definition, query_gradient, lambda: plain_weights(model), after_step, log)


def _require_softmax(definition: AttentionDefinition) -> None:
    if definition.routing != "softmax":
        raise KeyholeError(
            ErrorCode.MODEL_UNSUPPORTED,
            f"natq uses the Fisher matrix of a head's softmax row; this model's attention is {definition.routing}.",
            "Start from a model with softmax attention.",
        )


def _nothing() -> None:
    """Without parametrization a step leaves nothing to do."""
