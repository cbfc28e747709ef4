"""What a model's attention does beyond its architecture, bound to its attention modules for as long as they live.

The binding is an attribute of each module: it goes with a copy of the model, ends with it, and touches no other model.
"""

from torch import nn
from transformers import PreTrainedModel

from services.contracts.attention_definition import AttentionDefinition

_ATTRIBUTE = "keyhole_definition"
PLAIN = AttentionDefinition()


def bind(model: PreTrainedModel, definition: AttentionDefinition) -> None:
    """Bind the definition to every module that knows its layer; it takes the place of one bound before."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) is not None:
            setattr(module, _ATTRIBUTE, definition)


def of_module(attention_module: nn.Module) -> AttentionDefinition:
    """The definition bound to an attention module; plain if there is none."""
    return getattr(attention_module, _ATTRIBUTE, PLAIN)


def of_model(model: PreTrainedModel) -> AttentionDefinition:
    """The definition bound to a model; plain if there is none."""
    return next((found for module in model.modules() if (found := getattr(module, _ATTRIBUTE, None))), PLAIN)
