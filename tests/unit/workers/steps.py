"""Actual steps of gradient descent on one attention layer in float64, with its input, pattern and δ held.

The gradient of one query's output through one head is taken by autograd at whatever parameters make the values, in
their own layout; the attention module is then run again with the stepped parameters. Nothing of Keyhole is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from tests.unit.workers import reference

_values: list[Tensor] = []


def _tap(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    groups = query.shape[1] // value.shape[1]
    _values.append(torch.repeat_interleave(value, groups, dim=1))
    return query.new_zeros(*query.shape[:3], value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register("values only", _tap)
AttentionMaskInterface.register("values only", eager_mask)


@dataclass
class Call:
    """A layer's attention module with what it was called with."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    model: Any

    def values(self, parameters: dict[str, Tensor]) -> Tensor:
        """[batch, head, key, d_value], a function of the parameters."""
        before = self.model.config._attn_implementation
        self.model.set_attn_implementation("values only")
        try:
            functional_call(self.module, parameters, self.arguments, self.named)
        finally:
            self.model.set_attn_implementation(before)
        return _values.pop()


def record(model: PreTrainedModel, token_ids: Tensor) -> tuple[reference.Recording, list[Call]]:
    """The reference's recording, and the calls of the attention modules by layer."""
    calls: list[Call] = []
    modules = [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in ("self_attn", "attn", "attention")
    ]
    inner = [module for module in modules if not any(other in set(list(module.modules())[1:]) for other in modules)]

    def keep(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        held = {name: value.detach() if isinstance(value, Tensor) else value for name, value in named.items()}
        calls.append(Call(module, tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments), held, model))

    handles = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in inner]
    try:
        recording = reference.record(model, token_ids)
    finally:
        for handle in handles:
            handle.remove()
    assert len(calls) == len(recording.layers)
    return recording, calls


def advantages(pattern: Tensor, value: Tensor, delta: Tensor) -> Tensor:
    """A_j = −δ·(v_j − y) of one row; y = Σ_j a_j v_j."""
    return -(value - pattern @ value) @ delta


def change_of_advantages(
    call: Call, layer: reference.Layer, delta: Tensor, where: tuple[int, int, int], *, bias: bool = False
) -> Tensor:
    """A after − A before a step of unit length on the value matrix, by (sequence, head, query) [key].

    With ``bias`` the bias of the values takes the step too.
    """
    sequence, head, query = where
    pattern = layer.pattern[sequence, head, query]
    row = delta[sequence, head, query]
    parameters = {name: value.detach().requires_grad_() for name, value in call.module.named_parameters()}
    with torch.enable_grad():
        value = call.values(parameters)[sequence, head]
        loss = (pattern @ value) @ row
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    stepped = {
        name: value.detach() - (0 if gradient is None or (value.ndim < 2 and not bias) else gradient)
        for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
    }
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients) or not row.any()
    with torch.no_grad():
        after = call.values(stepped)[sequence, head]
    return advantages(pattern, after, row) - advantages(pattern, value.detach(), row)


def step_of_scores(pattern: Tensor, visible: Tensor, value: Tensor, delta: Tensor) -> Tensor:
    """Δs of one row by autograd through its softmax, [key]; 0 where the key is not in the row.

    What the pattern lacks to 1 is the weight of a sink, whose score is held.
    """
    sink = (1 - pattern.sum()).clamp_min(0)
    scores = torch.where(visible, pattern, 1).log().requires_grad_()
    with torch.enable_grad():
        unnormalized = torch.where(visible, scores.exp(), 0)
        weights = unnormalized / (unnormalized.sum() + sink)
        (gradient,) = torch.autograd.grad((weights @ value) @ delta, scores)
    return -gradient


def log_odds(scores: Tensor, sink: Tensor, one: int, others: Sequence[int]) -> Tensor:
    """log of the weight of one key over that of the others and the sink."""
    return scores[one] - torch.logsumexp(torch.cat([scores[list(others)], sink.log()[None]]), 0)
