"""Vetting of config.json: what would make a loader run code, fetch kernels or quantize is refused, not ignored.

``trust_remote_code=False`` alone was bypassed through config.json (CVE-2026-4372, CVE-2026-5241).
"""

from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.json_file import read_json_object
from services.sources.model_sizes import vet_sizes

CONFIG_LIMIT = 1 << 20  # bytes; the largest config.json of a known model has about 50 kB
TOKENIZER_CONFIG_LIMIT = 16 << 20

# ``_``-keys that transformers itself writes into config.json: notes, which are dropped, and parts of an architecture
_NOTES = frozenset({"_name_or_path", "_commit_hash", "_diffusers_version", "_num_labels"})
_ARCHITECTURE_KEYS = frozenset({"_sliding_window_pattern", "_remove_final_layer_norm", "_pad_token_id"})
_CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "trust_remote_code"})
# what transformers' loader takes out of a config: other weight files, kernels, patches, processes
_LOADER_KEYS = frozenset(
    {"transformers_weights", "use_kernels", "kernel_config", "fusion_config", "distributed_config"}
)
_IMPLEMENTATION_KEYS = frozenset(
    f"{prefix}{part}_implementation{suffix}"
    for prefix in ("", "_")
    for part in ("attn", "experts")
    for suffix in ("", "_internal", "_autoset")
)
_IMPLEMENTATIONS = frozenset(
    {None, True, False, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}
)
# what a forward pass hands back is for the probes to say; num_labels makes a table of that many names
_OUTPUT_KEYS = frozenset(
    {"return_dict", "use_return_dict", "torchscript", "output_attentions", "output_hidden_states", "num_labels"}
)


def read_config(path: Path) -> dict[str, Any]:
    """Read and vet a config.json; raises KeyholeError (model_refused)."""
    config = read_json_object(path, CONFIG_LIMIT)
    vet_keys(config, path.name)
    vet_sizes(config)
    return config


def vet_keys(value: Any, where: str) -> None:
    """Refuse dangerous keys at any depth of a config.json or tokenizer_config.json."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            vet_keys(item, f"{where}[{index}]")
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        if key in _CODE_KEYS:
            raise _refused(
                f"{where} has {key!r}, which names Python code to run.", "Use a model that transformers knows."
            )
        if key in ("quantization_config", "compression_config"):
            raise _refused(
                f"{where} has {key!r}: quantized weights cannot be measured.",
                "Save the model dequantized, e.g. as bfloat16.",
            )
        if key in _LOADER_KEYS and item:
            raise _refused(f"{where} has {key!r}, which steers the loader.", f"Remove {key!r}.")
        if key in _IMPLEMENTATION_KEYS:
            if not isinstance(item, str | bool | None) or item not in _IMPLEMENTATIONS:
                raise _refused(f"{where} sets {key!r} to {item!r}, which may name code of the hub.", f"Remove {key!r}.")
        elif key.startswith("_") and not _is_known_private(key, item):
            raise _refused(f"{where} has the private key {key!r}.", f"Remove {key!r} if the model does without it.")
        vet_keys(item, f"{where}.{key}")


def _is_known_private(key: str, value: Any) -> bool:
    if key in _ARCHITECTURE_KEYS:
        return isinstance(value, int | None)
    return key in _NOTES and isinstance(value, str | int | None)


def harmless(config: dict[str, Any]) -> dict[str, Any]:
    """The vetted config without what says how or from where to load or what to return, for the loader to read."""
    dropped = _IMPLEMENTATION_KEYS | _NOTES | _OUTPUT_KEYS
    return {key: value for key, value in config.items() if key not in dropped}


def _refused(message: str, hint: str) -> KeyholeError:
    return KeyholeError(ErrorCode.MODEL_REFUSED, message, hint)
