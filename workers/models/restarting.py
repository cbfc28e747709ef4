"""Forward passes that start above the first layer, from what the layers below gave in an earlier pass.

Nothing is known of a model but that its decoder layers stand in one list, each with its own attention module. While a
pass is recorded their outputs are kept, one residual stream per layer; in a restarted pass those below the first layer
that matters hand theirs out again instead of computing it. Masks, position embeddings, the layers above, final norm and
logits are the model's own code. Whether a model carries anything past its layers' outputs does not show in its
structure: callers compare a restarted pass with a whole one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel


def decoder_layers(model: PreTrainedModel) -> list[nn.Module] | None:
    """The model's layers from the first to the last; none if they do not stand in one list."""
    number = model.config.get_text_config().num_hidden_layers
    for modules in model.modules():
        if (
            isinstance(modules, nn.ModuleList)
            and len(modules) == number
            and all(_attention_layers(module) == {index} for index, module in enumerate(modules))
        ):
            return list(modules)
    return None


def _attention_layers(module: nn.Module) -> set[int]:
    """Which layers the attention modules within say they belong to."""
    return {index for each in module.modules() if (index := getattr(each, "layer_idx", None)) is not None}


class LayerOutputs:
    """What each layer gave in the pass that was recorded last."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self._layers = layers
        self._outputs: list[Any] = [None] * len(layers)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the outputs of the layers in the forward pass within."""

        def keep(index: int) -> Any:
            def hook(module: nn.Module, arguments: Any, output: Any) -> None:
                self._outputs[index] = output

            return hook

        # the last layer's output is of no use: above it nothing is changed
        handles = [layer.register_forward_hook(keep(index)) for index, layer in enumerate(self._layers[:-1])]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def replayed_below(self, first_layer: int) -> Iterator[None]:
        """Forward passes within compute the layers from ``first_layer`` on; those below give what was recorded."""
        below = list(zip(self._layers, self._outputs, strict=True))[:first_layer]
        own = [vars(layer).get("forward") for layer, _ in below]  # set on the instance by whoever wrapped the layer
        for layer, output in below:
            layer.forward = _giving(output)
        try:
            yield
        finally:
            for (layer, _), forward in zip(below, own, strict=True):
                if forward is None:
                    del layer.forward
                else:
                    layer.forward = forward


def _giving(output: Any) -> Any:
    return lambda *arguments, **named: output
