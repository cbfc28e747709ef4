"""The routes that a model's definition names."""

from collections.abc import Callable
from functools import cache

from torch import Tensor

from services.contracts.attention_definition import AttentionDefinition, Routing
from services.contracts.probes.common import Credit
from workers.attention.inputs import AttentionInputs
from workers.attention.shared import fused_shared_route, shared_route, softmax_by_blocks
from workers.attention.sigmoid import sigmoid_route
from workers.attention.softmax import softmax_route


def route_of(definition: AttentionDefinition) -> Callable[[AttentionInputs, Credit], Tensor]:
    """How the model's scores become head outputs."""
    return _route(definition.routing, definition.sigmoid_bias)


def own_by_blocks(definition: AttentionDefinition) -> Callable[[AttentionInputs, Credit], Tensor]:
    """The same through the code that changes routing: nothing but rounding should differ."""
    match definition.routing:
        case "softmax":
            return softmax_by_blocks
        case "shared_softmax":
            return shared_route
        case _:
            return route_of(definition)


@cache
def _route(routing: Routing, bias: float | None) -> Callable[[AttentionInputs, Credit], Tensor]:
    match routing:
        case "softmax":
            return softmax_route
        case "shared_softmax":
            return fused_shared_route
        case "sigmoid" | "shared_sigmoid":
            return sigmoid_route("row_length" if bias is None else bias, shared=routing == "shared_sigmoid")
