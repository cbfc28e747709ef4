"""Model folders and safetensors files put together by hand, so that they can also be put together wrongly."""

import json
import math
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "max_position_embeddings": 64,
}


def safetensors_bytes(tensors: dict[str, list[int]], **changed_entries: Any) -> bytes:
    """A file of float32 zeros; ``changed_entries`` replace entries of the header."""
    header: dict[str, Any] = {}
    position = 0
    for name, shape in tensors.items():
        stop = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, stop]}
        position = stop
    return with_header({**header, **changed_entries}, position)


def with_header(header: Any, data_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def write_model(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A folder that passes the vetting, unless ``config`` says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"a": [16, 8], "b": [4]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
