"""A config.json that would make a loader run code or fetch something is refused, however deep it is hidden."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.model_config import CONFIG_LIMIT, harmless, read_config
from tests.unit.services.sources.model_files import CONFIG


def _read(tmp_path: Path, config: Any) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return read_config(path)


HOSTILE: dict[str, dict[str, Any]] = {
    "auto_map": {"auto_map": {"AutoModel": "modeling.Evil"}},
    "auto_map in a sub-config": {"text_config": {"auto_map": {"AutoModel": "org/repo--modeling.Evil"}}},
    "auto_map in a list": {"parts": [{"inner": [{"auto_map": {}}]}]},
    "trust_remote_code": {"trust_remote_code": True},
    "quantization_config": {"quantization_config": {"quant_method": "gptq"}},
    "hub kernel as attention": {"_attn_implementation": "org/kernel"},
    "hub kernel without underscore": {"attn_implementation": "org/kernel:function"},
    "hub kernel, internal name": {"_attn_implementation_internal": "org/kernel"},
    "hub kernel by part": {"attn_implementation": {"text_config": "org/kernel"}},
    "hub kernel in a sub-config": {"text_config": {"_attn_implementation": "org/kernel"}},
    "hub kernel for experts": {"_experts_implementation": "org/kernel"},
    "unknown private key": {"_custom_loader": "x"},
    "known private key with a structure": {"_sliding_window_pattern": {"a": 1}},
    "other weights": {"transformers_weights": "../../elsewhere.bin"},
    "kernels": {"kernel_config": {"RMSNorm": "org/kernel"}},
}


@pytest.mark.parametrize("addition", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_config_that_steers_the_loader_is_refused(tmp_path: Path, addition: dict[str, Any]) -> None:
    with pytest.raises(KeyholeError) as refused:
        _read(tmp_path, CONFIG | addition)
    assert refused.value.code == ErrorCode.MODEL_REFUSED


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        '{"a": NaN, "x": "' + "x" * CONFIG_LIMIT + '"}',
    ],
    ids=["list", "cut short", "duplicate key", "deeply nested", "huge"],
)
def test_a_config_that_is_no_small_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyholeError) as refused:
        _read(tmp_path, text)
    assert refused.value.code == ErrorCode.MODEL_REFUSED


def test_what_save_pretrained_writes_passes_and_the_loader_gets_it_without_notes(tmp_path: Path) -> None:
    kept = CONFIG | {"_sliding_window_pattern": 6, "_remove_final_layer_norm": True}
    config = _read(tmp_path, kept | {"_name_or_path": "org/name", "_attn_implementation": "sdpa"})
    assert harmless(config) == kept
