"""The seam: one attention function, registered with transformers, under which every probe and variant hangs.

``attach(model)`` makes a model use it. ``define(model, definition)`` says for good what the model's attention does
beyond its architecture: normalised queries and keys, a fixed scale, another routing. ``observing(model, …)`` binds
three slots to the model's forward passes in this thread, and only there:

- ``route`` turns queries, keys and values into head outputs (the model's own unless another is given);
- ``query_gradient`` replaces the gradient that flows into the queries; none leaves it;
- ``observers`` see each layer on the way forward, and ∂L/∂y on the way back, when the backward pass reaches it.

Passes of a model compiled by ``torch.compile`` see its definition and nothing of what is bound.

Observers get detached tensors that autograd holds anyway, and the layer is let go once its gradient has been seen.
The first observed layer's output is where gradients start: nothing below it needs one, so weights stay frozen and no
embedding has to require a gradient.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit
from workers.attention import definition as definitions
from workers.attention.inputs import AttentionInputs, LayerAttention, Outputs
from workers.attention.routes import route_of

IMPLEMENTATION = "keyhole"
_EPSILON = 1e-6  # added to the mean square of a vector that is normalised, as in transformers' own q and k norms

Route = Callable[[AttentionInputs, Credit], Tensor]  # returns [batch, head, position, d_value]
QueryGradient = Callable[[AttentionInputs], Tensor]  # returns the query, with another backward


@runtime_checkable
class Observer(Protocol):
    def forward(self, attention: LayerAttention) -> None:
        """The layer has computed its head outputs."""

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """The backward pass has reached the layer: ``delta`` is ∂L/∂y."""


@dataclass(eq=False)
class _Binding:
    """What one ``observing`` block bound, and how often each layer has called in the current forward pass."""

    modules: frozenset[int]
    observers: Sequence[Observer]
    route: Route | None = None  # the model's own
    query_gradient: QueryGradient | None = None
    credit: Credit = "sequence"
    hidden: dict[int, Tensor] | None = None  # by attention module, its input, from its call to that of the seam
    first_layer: int = 0  # those below it are not run
    backwards: int = 1  # backward passes that the observers are to see of each forward pass
    calls: Counter[int] = field(default_factory=Counter)


_UNBOUND = _Binding(frozenset(), ())
_bindings: ContextVar[tuple[_Binding, ...]] = ContextVar("keyhole_bindings", default=())


def attach(model: PreTrainedModel) -> None:
    """Switch the model's attention to the seam; raises KeyholeError (model_unsupported) if it cannot be."""
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:  # transformers only logs that it did not
        raise _unsupported(model.config.model_type, "its attention does not dispatch through AttentionInterface")


def define(model: PreTrainedModel, definition: AttentionDefinition) -> None:
    """Let the model's attention be this in all of its passes from now on; it takes the place of an earlier definition.

    Observers see queries, keys and the scaling as the definition makes them; a route or query gradient gets them so.
    """
    definitions.bind(model, definition)


def defined(model: PreTrainedModel) -> AttentionDefinition:
    """The model's definition; plain if none was bound."""
    return definitions.of_model(model)


@contextmanager
def observing(
    model: PreTrainedModel,
    observers: Sequence[Observer] = (),
    *,
    route: Route | None = None,
    query_gradient: QueryGradient | None = None,
    credit: Credit = "sequence",
    hidden: bool = False,
    first_layer: int = 0,
    backwards: int = 1,
) -> Iterator[None]:
    """Bind route, query-gradient transform and observers to the model's forward passes in this block.

    With ``hidden`` observers also get the input x of each attention module, which is kept until the layer's backward.
    ``backwards`` is how many backward passes will go through each forward pass, all but the last with its graph kept.
    Each forward pass must call the seam once per layer; else KeyholeError (model_unsupported): some architectures
    accept the setting and never call the function, and others mix positions by something besides attention. Only layers
    from ``first_layer`` on are expected to (see ``workers/models/restarting.py``).
    """
    assert model.config._attn_implementation == IMPLEMENTATION, "attach the model first"
    if credit == "own_token":
        _refuse_other_mixing(model)
    modules = frozenset(id(module) for module in model.modules())
    inputs = {} if hidden else None
    binding = _Binding(modules, observers, route, query_gradient, credit, inputs, first_layer, backwards)
    handles = [
        model.register_forward_pre_hook(lambda module, arguments: binding.calls.clear()),
        model.register_forward_hook(lambda module, arguments, output: _check_calls(model, binding)),
        *(_catch_input(module, binding) for module in _attention_modules(model) if hidden),
    ]
    token = _bindings.set((binding, *_bindings.get()))
    try:
        yield
    finally:
        _bindings.reset(token)
        for handle in handles:
            handle.remove()


def keyhole_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,  # sliding_window and the like are in the mask already
) -> tuple[Outputs, None]:
    """The function transformers calls in every layer; see ``AttentionInputs`` for the shapes."""
    if torch.is_autocast_enabled(query.device.type):
        # products of float32 scores would be done in its dtype again: what is measured, and routes of our own
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
        with torch.autocast(query.device.type, enabled=False):
            return keyhole_attention(
                module, query, key, value, attention_mask, scaling, dropout, softcap, s_aux, **others
            )
    _refuse_unknown(module, query, key, attention_mask, dropout, others)
    compiling = torch.compiler.is_compiling()  # what is bound to a thread cannot be seen, and would break the graph
    binding = _UNBOUND if compiling else _binding_of(module)
    inputs = AttentionInputs(
        layer=int(module.layer_idx),  # type: ignore[arg-type]  # nn.Module types its attributes as modules or tensors
        query=query,
        key=key,
        value=value,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=attention_mask,
        softcap=softcap,
        sinks=s_aux,
    )
    definition = definitions.of_module(module)
    inputs = _as_defined(inputs, definition)
    if not compiling:
        binding.calls[inputs.layer] += 1
    if binding.query_gradient is not None:
        inputs = replace(inputs, query=binding.query_gradient(inputs))
    route = binding.route or route_of(definition)
    output = route(inputs, binding.credit).transpose(1, 2).contiguous()
    if binding.observers:
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()
        x = None if binding.hidden is None else binding.hidden.pop(id(module))
        _show(inputs, output, binding, module, x)
    return output, None


def _as_defined(inputs: AttentionInputs, definition: AttentionDefinition) -> AttentionInputs:
    """Queries, keys and scaling as the definition makes them."""
    if definition.qk_norm:
        query, key = (F.rms_norm(each, each.shape[-1:], eps=_EPSILON) for each in (inputs.query, inputs.key))
        inputs = replace(inputs, query=query.to(inputs.value.dtype), key=key.to(inputs.value.dtype))
    return inputs if definition.scale is None else replace(inputs, scaling=definition.scale)


def _attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """Modules that know their layer and hold none that does: the attention modules, and perhaps others."""
    placed = [module for module in model.modules() if getattr(module, "layer_idx", None) is not None]
    return [
        module
        for module in placed
        if not any(getattr(child, "layer_idx", None) is not None for child in list(module.modules())[1:])
    ]


def _catch_input(module: nn.Module, binding: _Binding) -> RemovableHandle:
    """Keep what the module is called with, its first argument or ``hidden_states``, for the seam's call within."""

    def catch(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert binding.hidden is not None
        x = named["hidden_states"] if "hidden_states" in named else arguments[0]
        binding.hidden[id(module)] = x.detach()

    return module.register_forward_pre_hook(catch, with_kwargs=True)


def _show(
    inputs: AttentionInputs, output: Outputs, binding: _Binding, module: nn.Module, hidden: Tensor | None
) -> None:
    """Show the layer to the observers now, and again with its δ when the backward pass reaches the output."""
    seen = LayerAttention(
        layer=inputs.layer,
        query=inputs.query.detach(),
        key=inputs.key.detach(),
        value=inputs.value.detach(),
        scaling=inputs.scaling,
        mask=inputs.mask,
        softcap=inputs.softcap,
        sinks=None if inputs.sinks is None else inputs.sinks.detach(),
        output=output.detach(),
        module=module,
        hidden=hidden,
    )
    for observer in binding.observers:
        observer.forward(seen)
    if output.requires_grad:
        # emptied by the last call: the hook itself lives as long as the graph
        held = [seen] * binding.backwards

        def on_gradient(delta: Tensor) -> None:
            attention = held.pop()
            for observer in binding.observers:
                observer.backward(attention, delta)

        output.register_hook(on_gradient)


def _binding_of(module: nn.Module) -> _Binding:
    """The innermost binding of the model that the module belongs to; one without observers if there is none."""
    return next((binding for binding in _bindings.get() if id(module) in binding.modules), _UNBOUND)


def _check_calls(model: PreTrainedModel, binding: _Binding) -> None:
    if _binding_of(model) is not binding:  # an inner block, or another thread, ran this pass
        return
    layers = model.config.get_text_config().num_hidden_layers
    if binding.calls != Counter(range(binding.first_layer, layers)):
        raise _unsupported(
            model.config.model_type,
            f"a forward pass of its {layers} layers should call the attention function once per layer; the calls by "
            f"layer were {dict(binding.calls)}",
        )


def _refuse_unknown(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, dropout: float, others: dict[str, Any]
) -> None:
    name = type(module).__name__
    if getattr(module, "layer_idx", None) is None:
        raise _unsupported(name, "its attention modules do not say which layer they are")
    if query.shape[2] != key.shape[2]:
        raise _unsupported(
            name, f"it attends from {query.shape[2]} queries to {key.shape[2]} keys (a cache, or another text)"
        )
    causal = others.get("is_causal")
    if mask is None and not (getattr(module, "is_causal", True) if causal is None else causal):
        raise _unsupported(name, "its attention is not causal")
    if mask is not None and mask.dtype != torch.bool:
        raise _unsupported(name, f"it adds a mask of {mask.dtype} to its scores, such as ALiBi")
    if others.get("position_bias") is not None:
        raise _unsupported(name, "it adds a position bias to its scores")
    if dropout:
        raise _unsupported(name, f"its attention drops out weights (p = {dropout}); measure it in evaluation mode")


def _refuse_other_mixing(model: PreTrainedModel) -> None:
    """Own-token credit holds only where attention alone carries anything from one position to another."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.RNNBase):
            raise _unsupported(
                model.config.model_type,
                f"credit 'own_token' needs attention to be all that mixes positions, and {name} is a "
                f"{type(module).__name__}",
            )


def _unsupported(what: str, reason: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_UNSUPPORTED,
        f"{what} cannot be measured: {reason}.",
        "Choose a model of a supported architecture.",
    )


AttentionInterface.register(IMPLEMENTATION, keyhole_attention)
# boolean masks, or none for plain causal attention; without a mask function nothing would be causal
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
