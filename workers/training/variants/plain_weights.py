"""The weights of a model as a plain one of its architecture has them: parametrizations folded in, tied ones once."""

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from transformers import PreTrainedModel


@torch.no_grad()
def plain_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """State of the plain model by name; contiguous, for safetensors, and shared with the model where it can be."""
    folded = {
        f"{path}.{name}" if path else name: getattr(module, name)
        for path, module in model.named_modules()
        if parametrize.is_parametrized(module)
        for name in module.parametrizations  # type: ignore[union-attr]  # a ModuleDict
    }
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    tied = set(model.all_tied_weights_keys) - folded.keys()  # by those that name the same weight
    return {name: tensor.detach().contiguous() for name, tensor in (state | folded).items() if name not in tied}
