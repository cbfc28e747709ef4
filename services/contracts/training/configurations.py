"""Models that a run can start from without weights: ``config:NAME``, changed by ``?option=value``.

``gpt-…`` are GPT-2's architecture: learned positions, LayerNorm, GELU, tied embeddings. ``llama``, ``qwen2`` and
``qwen3`` are those architectures in a small size that options enlarge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError

OPTIONS = {
    "layers": "number of layers",
    "heads": "query heads in a layer",
    "kv_heads": "key/value heads in a layer; not of gpt2",
    "width": "d_model",
    "d_head": "width of a head; not of gpt2, where it is width / heads",
    "mlp": "width of the hidden layer of the MLP",
    "context": "longest sequence",
    "vocabulary": "number of token ids",
    "rope_theta": "base of the rotary embedding; not of gpt2",
}
_LARGEST = {"layers": 1024, "heads": 1024, "kv_heads": 1024, "context": 1 << 20, "vocabulary": 1 << 20}
_LARGEST_OTHER = 1 << 17


@dataclass(frozen=True)
class Configuration:
    model_type: str
    about: str
    options: Mapping[str, int]


CONFIGURATIONS: dict[str, Configuration] = {
    "gpt-124m": Configuration(
        "gpt2",
        "124M parameters: the size of the article, 12 layers of 6 heads, width 768, context 1,024, GPT-2's vocabulary",
        {"layers": 12, "heads": 6, "width": 768, "mlp": 3072, "context": 1024, "vocabulary": 50304},
    ),
    "gpt-mini": Configuration(
        "gpt2",
        "12M parameters: 6 layers of 6 heads, width 384, context 512; an hour or so on two CPU cores",
        {"layers": 6, "heads": 6, "width": 384, "mlp": 1536, "context": 512, "vocabulary": 4096},
    ),
    "gpt-tiny": Configuration(
        "gpt2",
        "1M parameters: 4 layers of 4 heads, width 128, context 256; minutes on two CPU cores",
        {"layers": 4, "heads": 4, "width": 128, "mlp": 512, "context": 256, "vocabulary": 1024},
    ),
    **{
        name: Configuration(
            name,
            f"{about}: 4 layers of 4 heads, width 128, context 256",
            {
                "layers": 4,
                "heads": 4,
                "kv_heads": kv_heads,
                "width": 128,
                "d_head": 32,
                "mlp": 384,
                "context": 256,
                "vocabulary": 1024,
                "rope_theta": 10_000,
            },
        )
        for name, kv_heads, about in (
            ("llama", 4, "Llama's architecture"),
            ("qwen2", 2, "Qwen2's architecture, with biases of queries, keys and values"),
            ("qwen3", 2, "Qwen3's architecture, with learned norms of queries and keys"),
        )
    },
}


def parse_options(name: str, given: Mapping[str, str]) -> dict[str, int]:
    """All options of the configuration with those given; raises KeyholeError (invalid_source) that lists them."""
    if name not in CONFIGURATIONS:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"There is no configuration {name!r}.",
            f"Configurations: {', '.join(CONFIGURATIONS)}.",
        )
    options = dict(CONFIGURATIONS[name].options)
    for key, text in given.items():
        if key not in options:
            raise KeyholeError(
                ErrorCode.INVALID_SOURCE, f"{name} has no option {key!r}.", f"Options: {', '.join(options)}."
            )
        largest = _LARGEST.get(key, _LARGEST_OTHER if key != "rope_theta" else 10**9)
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= largest:
            raise KeyholeError(
                ErrorCode.INVALID_SOURCE, f"{key} is {text!r}.", f"Give a whole number from 1 to {largest:,}."
            )
        options[key] = int(text)
    _refuse_misfit(options)
    return options


def transformers_config(name: str, options: Mapping[str, int]) -> dict[str, Any]:
    """config.json of a model of this configuration."""
    model_type = CONFIGURATIONS[name].model_type
    if model_type == "gpt2":
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": options["layers"],
            "n_head": options["heads"],
            "n_embd": options["width"],
            "n_inner": options["mlp"],
            "n_positions": options["context"],
            "vocab_size": options["vocabulary"],
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": True,
        }
    return {
        "model_type": model_type,
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "num_hidden_layers": options["layers"],
        "num_attention_heads": options["heads"],
        "num_key_value_heads": options["kv_heads"],
        "hidden_size": options["width"],
        "head_dim": options["d_head"],
        "intermediate_size": options["mlp"],
        "max_position_embeddings": options["context"],
        "vocab_size": options["vocabulary"],
        "rope_theta": float(options["rope_theta"]),
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": True,
    }


def _refuse_misfit(options: Mapping[str, int]) -> None:
    """Raise KeyholeError (invalid_source) where heads do not divide what they share."""
    if "d_head" not in options and options["width"] % options["heads"]:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"width {options['width']} is no multiple of heads {options['heads']}.",
            "Each head takes an equal part of the width.",
        )
    if "kv_heads" in options and options["heads"] % options["kv_heads"]:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"heads {options['heads']} is no multiple of kv_heads {options['kv_heads']}.",
            "Each key/value head serves an equal number of heads.",
        )
    if "d_head" in options and options["d_head"] % 2:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"d_head is {options['d_head']}.",
            "The rotary embedding turns pairs: give an even one.",
        )
