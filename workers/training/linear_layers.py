"""The linear layers of a model, and their matrices: q, k and v count each, also where one layer holds all three.

Linear layers are ``nn.Linear`` and GPT-2's ``Conv1D`` inside the model's layers. Embeddings and the output layer are
none of them: they are lookups of tokens, one row each, and mostly share one weight.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from workers.attention.projections import fused_layer, split_fused

_PLACE = re.compile(r"(?:.*?\.)?(\d+)\.(.+)")  # layer, and name within it
_ATTENTION_NAMES = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "out_proj": "o",
    "dense": "o",
    "c_proj": "o",
}


@dataclass(frozen=True)
class Part:
    """A matrix within a linear layer: which of its outputs."""

    name: str
    outputs: Int64[Tensor, " output"] | None  # none is all


@dataclass(frozen=True)
class LinearLayer:
    layer: int
    path: str  # of the module, in the model
    module: nn.Module
    parts: Sequence[Part]


@dataclass(frozen=True)
class Matrix:
    """A matrix by name, and how to get it as it is used: reparametrised weights are computed."""

    layer: int
    name: str
    weight: Callable[[], Float[Tensor, "output input"]]


def linear_layers(model: PreTrainedModel) -> list[LinearLayer]:
    """All linear layers, in the model's order."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = 1 if getattr(config, "multi_query", False) else getattr(config, "num_key_value_heads", None) or heads
    attention = {id(m): m for m in model.modules() if getattr(m, "layer_idx", None) is not None}
    found = []
    for path, module in model.named_modules():
        place = _PLACE.fullmatch(path)
        if place is None or not isinstance(module, nn.Linear | Conv1D):
            continue
        layer, name = int(place[1]), place[2]
        above = model.get_submodule(path.rpartition(".")[0])
        if id(above) not in attention:
            parts = [Part(name, None)]
        elif module is fused_layer(above):
            outputs = torch.arange(as_matrix(module).shape[0])
            split = split_fused(above, outputs, heads, kv_heads)
            parts = [Part(letter, part) for letter, part in zip("qkv", split, strict=True)]
        else:
            parts = [Part(_ATTENTION_NAMES.get(path.rpartition(".")[2], name), None)]
        found.append(LinearLayer(layer, path, module, parts))
    return found


def matrices(model: PreTrainedModel) -> list[Matrix]:
    """Every matrix of every linear layer, in the model's order."""
    return [
        Matrix(linear.layer, part.name, _getter(linear.module, part))
        for linear in linear_layers(model)
        for part in linear.parts
    ]


def as_matrix(linear: nn.Module) -> Float[Tensor, "output input"]:
    """The weight of a linear layer; ``Conv1D`` stores it the other way round."""
    weight = linear.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(linear, Conv1D) else weight


def _getter(module: nn.Module, part: Part) -> Callable[[], Tensor]:
    def weight() -> Tensor:
        whole = as_matrix(module).detach()
        return whole if part.outputs is None else whole[part.outputs.to(whole.device)]

    return weight
