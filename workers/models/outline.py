"""A model without memory: what transformers would build, compared with the headers of the files.

from_pretrained makes at random what the files lack, and only then says so: a small folder could take all memory there
is. On the ``meta`` device tensors have shapes and no bytes, and the same code renames, converts and ties them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.safetensors_header import TensorEntry

# buffers that older releases of transformers stored and current ones compute
_OLD_BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")
# Bytes of what a model computes for itself, such as causal masks and tables of positions. Assumed: the largest known is
# the mask of GPT-BigCode, 64 MB.
_MOST_BUFFER_BYTES = 2 << 30
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def require_fit(folder: Path, tensors: Mapping[str, TensorEntry], dtype: torch.dtype) -> None:
    """Refuse files that do not hold exactly the model's weights, before memory is taken for any.

    Raises KeyholeError (model_refused) with the names, and whatever transformers raises on a config it cannot build.
    """
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    buffers = dict(model.named_buffers())
    computed = sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())
    if computed > _MOST_BUFFER_BYTES:
        raise _refused(f"The model computes tables of {computed:,} bytes besides its weights.")
    _require_floats(tensors, buffers)
    named = {
        name: torch.empty(entry.shape, dtype=_DTYPES.get(entry.dtype, torch.int64), device="meta")
        for name, entry in tensors.items()
    }
    _, info = type(model).from_pretrained(
        None,
        config=config,
        state_dict=named,
        device_map={"": "meta"},
        dtype=dtype,
        attn_implementation="eager",
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused below, by name
    )
    require_all_weights(info)


def require_all_weights(info: Mapping[str, Any]) -> None:
    """Weights made up at random, or left out, would be measured as if they were the model's."""
    problems = {
        "lacks": info["missing_keys"],
        "has in another shape": [
            f"{name} {list(found)} for {list(due)}" for name, found, due in info["mismatched_keys"]
        ],
        "has besides what the architecture uses": [
            name for name in info["unexpected_keys"] if not name.endswith(_OLD_BUFFERS)
        ],
        "cannot convert": info["error_msgs"],
    }
    for problem, names in problems.items():
        if names:
            raise _refused(f"The checkpoint {problem} {len(names)} weights: {shown(map(str, names))}.")


def require_finite(model: torch.nn.Module) -> None:
    """Refuse weights that are no numbers: everything measured on them would be none; raises KeyholeError."""
    wrong = [name for name, weight in model.named_parameters() if weight.numel() and not _finite(weight)]
    if wrong:
        raise _refused(
            f"{len(wrong)} weights are not finite in {str(model.dtype).removeprefix('torch.')}: {shown(wrong)}.",
            "The run that wrote them may have diverged; name an earlier checkpoint.",
        )


def shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (", …" if len(ordered) > 5 else "")


def _finite(weight: torch.Tensor) -> bool:
    least, most = weight.detach().aminmax()  # either is NaN where one value is; no copy of the weight is made
    return bool(least.isfinite() & most.isfinite())


def _require_floats(tensors: Mapping[str, TensorEntry], buffers: Mapping[str, torch.Tensor]) -> None:
    """Whole numbers would be cast silently; masks and the like, which are no weights, may be whole numbers."""
    wrong = [
        f"{name} ({entry.dtype})"
        for name, entry in tensors.items()
        if not entry.is_float
        and not name.endswith(_OLD_BUFFERS)
        and not any(buffer == name or buffer.endswith(f".{name}") for buffer in buffers)
    ]
    if wrong:
        raise _refused(
            f"{len(wrong)} weights are whole numbers: {shown(wrong)}.",
            "Quantized weights cannot be measured; save them as bfloat16 or float32.",
        )


def _refused(
    message: str,
    hint: str = "Name the causal language model itself, saved whole, with the config.json that belongs to it.",
) -> KeyholeError:
    return KeyholeError(ErrorCode.MODEL_REFUSED, message, hint)
