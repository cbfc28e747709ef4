"""The matrices of one attention module by head: W_Q, W_K, W_V and W_O, however the architecture stores them.

    q_h = x·W_Q,h + b_Q,h     k_g = x·W_K,g + b_K,g     v_g = x·W_V,g + b_V,g     out = Σ_h y_h·W_O,h + b_O

with x the module's input after the layer's norm (``LayerAttention.hidden``), h a query head and g a key/value head.
What the model does to such a product before attention gets it stands in ``then``: only where that is empty is
``LayerAttention.query`` (key, value) the product itself. Latent attention (DeepSeek) has no such matrix for q, k and v.
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from workers.attention import definition

Step = Literal["norm", "clip", "rotary"]

# position embeddings are added to the input of these; in all others a rotary one turns q and k, but in the layers
# that ``_rotated`` knows
_NOT_ROTARY = frozenset({"gpt2", "gpt_bigcode", "opt"})
_LATENT = "latent attention: norms stand between its low-rank factors, so q, k and v are not linear in x"
_FUSED = ("c_attn", "query_key_value", "qkv_proj")
_UNKNOWN = "its projections are not stored in a layout that Keyhole knows"


@dataclass(frozen=True)
class Projection:
    """A linear map of the input, by head."""

    weight: Float[Tensor, "head d_model d"]
    bias: Float[Tensor, "head d"] | None
    then: tuple[Step, ...]  # what the model does to the product before attention, in this order

    def __call__(self, x: Float[Tensor, "batch position d_model"]) -> Float[Tensor, "batch head position d"]:
        """The product itself, before any of ``then``."""
        product = x[:, None] @ self.weight
        return product if self.bias is None else product + self.bias[:, None]


@dataclass(frozen=True)
class OutputProjection:
    """From the head outputs back to the residual stream (some architectures norm it once more)."""

    weight: Float[Tensor, "head d_value d_model"]
    bias: Float[Tensor, " d_model"] | None


@dataclass(frozen=True)
class Projections:
    """``query``, ``key`` and ``value`` are none, with the ``reason``, where no matrix of the module gives them."""

    query: Projection | None
    key: Projection | None
    value: Projection | None
    output: OutputProjection | None
    reason: str = ""


def projections(attention_module: nn.Module, heads: int, kv_heads: int) -> Projections:
    """Projections of an attention module with that many query heads and key/value heads. Tensors in its own dtype."""
    module: Any = attention_module
    found = _input_maps(module, heads, kv_heads)
    output = _output(module, heads)
    if isinstance(found, str):
        return Projections(None, None, None, output, found)
    turned: tuple[Step, ...] = ("rotary",) if _rotated(module) else ()
    clipped: tuple[Step, ...] = ("clip",) if getattr(module.config, "clip_qkv", None) is not None else ()
    normed: tuple[Step, ...] = ("norm",) if _has_norm(module) else ()
    renormed: tuple[Step, ...] = ("norm",) if definition.of_module(module).qk_norm else ()
    query, key, value = found
    compared = (*normed, *clipped, *turned, *renormed)
    return Projections(Projection(*query, compared), Projection(*key, compared), Projection(*value, clipped), output)


_Map = tuple[Tensor, Tensor | None]  # weight [head, d_model, d], bias [head, d]


def _input_maps(module: Any, heads: int, kv_heads: int) -> tuple[_Map, _Map, _Map] | str:
    """The maps to q, k and v, or why there are none."""
    if hasattr(module, "kv_a_proj_with_mqa"):
        return _LATENT
    if all(isinstance(getattr(module, name, None), nn.Linear) for name in ("q_proj", "k_proj", "v_proj")):
        query = _split(module.q_proj, heads)
        if _model_type(module) == "opt":  # scales the query itself and hands attention a scaling of 1
            query = _scaled(query, module.scaling)
        return query, _split(module.k_proj, kv_heads), _split(module.v_proj, kv_heads)
    fused = fused_layer(module)
    if fused is None:
        return _UNKNOWN
    weight, bias = _rows(fused)
    width = len(weight) // (heads + 2 * kv_heads)
    parts = split_fused(module, weight, heads, kv_heads)
    biases = (None, None, None) if bias is None else split_fused(module, bias, heads, kv_heads)
    query, key, value = (_by_head(part, part_bias, width) for part, part_bias in zip(parts, biases, strict=True))
    return query, key, value


def fused_layer(attention_module: nn.Module) -> nn.Module | None:
    """The linear layer that gives q, k and v at once, where there is one."""
    return next((m for n in _FUSED if (m := getattr(attention_module, n, None)) is not None), None)


def split_fused(
    attention_module: nn.Module, outputs: Shaped[Tensor, "output ..."], heads: int, kv_heads: int
) -> tuple[Shaped[Tensor, "q_output ..."], Shaped[Tensor, "k_output ..."], Shaped[Tensor, "v_output ..."]]:
    """What belongs to the outputs of the fused layer, cut into the parts of q, k and v, head after head in each."""
    module: Any = attention_module
    if hasattr(module, "mp_num"):  # CodeGen: several shards, each with its heads' q, then v, then k
        order, shards = (0, 2, 1), module.mp_num
    elif hasattr(module, "query_key_value") or getattr(module, "multi_query", None) is False:
        order, shards = (0, 1, 2), heads  # GPT-NeoX, Persimmon, GPT-BigCode with all key/value heads: head by head
    else:
        order, shards = (0, 1, 2), 1  # GPT-2, Phi-3, multi-query GPT-BigCode: all q, then all k, then all v
    width = len(outputs) // (heads + 2 * kv_heads)
    sizes = [heads * width // shards, kv_heads * width // shards, kv_heads * width // shards]
    parts = outputs.unflatten(0, (shards, -1)).split(sizes, 1)
    first, second, third = (parts[i].flatten(0, 1) for i in order)
    return first, second, third


def _rows(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight [d_out, d_in] and bias of a linear layer; GPT-2's ``Conv1D`` stores it the other way round."""
    weight = layer.weight.detach()
    bias = getattr(layer, "bias", None)
    return weight.T if isinstance(layer, Conv1D) else weight, None if bias is None else bias.detach()


def _split(layer: nn.Linear, heads: int) -> _Map:
    weight, bias = _rows(layer)
    return _by_head(weight, bias, len(weight) // heads)


def _by_head(weight: Tensor, bias: Tensor | None, width: int) -> _Map:
    return weight.unflatten(0, (-1, width)).transpose(1, 2), None if bias is None else bias.unflatten(0, (-1, width))


def _scaled(map_: _Map, factor: float) -> _Map:
    weight, bias = map_
    return weight * factor, None if bias is None else bias * factor


def _output(module: Any, heads: int) -> OutputProjection | None:
    layer = next((m for n in ("o_proj", "out_proj", "dense", "c_proj") if (m := getattr(module, n, None))), None)
    if layer is None:
        return None
    weight, bias = _rows(layer)
    return OutputProjection(weight.T.unflatten(0, (heads, -1)), bias)


def _has_norm(module: Any) -> bool:
    names = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
    return any(getattr(module, name, None) is not None for name in names)


def _rotated(module: Any) -> bool:
    """Whether a rotary embedding turns q and k in this layer; yes where it is not known."""
    match _model_type(module):
        case "smollm3":
            return bool(module.use_rope)
        case "cohere2":
            return module.sliding_window is not None
        case "exaone4":
            return module.sliding_window is None or module.is_sliding
        case model_type:
            return model_type not in _NOT_ROTARY


def _model_type(module: Any) -> str:
    return module.config.model_type
