"""Vetting of a model folder before anything loads it: which files are taken, and that they are what they claim.

Only named files are ever given to the loader (an allow-list): config, tokenizer and safetensors. Pickled weights beside
safetensors are never opened; a folder that has only those is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contracts.architectures import require_supported
from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.json_file import read_json_object
from services.sources.model_config import TOKENIZER_CONFIG_LIMIT, read_config, vet_keys
from services.sources.model_sizes import vet_against_tensors
from services.sources.safetensors_header import TensorEntry, read_header
from services.sources.tokenizer_file import require_plausible_id, vet_tokenizer
from services.sources.untrusted import untrusted

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_INDEX_LIMIT = 64 << 20  # bytes
_LONGEST_NAME = 255  # bytes, of a file on Linux
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".npz", ".joblib")
_PICKLE_HINT = "Load it where you trust it and save_pretrained(…, safe_serialization=True)."


@dataclass(frozen=True)
class VettedFolder:
    folder: Path
    model_type: str
    config: dict[str, Any]
    weights: tuple[str, ...]  # safetensors files
    files: tuple[str, ...]  # everything that may be loaded, weights included
    tensors: dict[str, TensorEntry]  # of all weights, by name

    @property
    def has_tokenizer(self) -> bool:
        return "tokenizer.json" in self.files


def vet_folder(folder: Path, roots: Sequence[Path] = ()) -> VettedFolder:
    """Check a model folder; its files may be links to below ``roots`` (the hub's cache keeps files that way).

    Raises KeyholeError (model_not_found, model_refused or model_unsupported).
    """
    if not folder.is_dir():
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"{folder} is not a folder.", "Name the folder that holds config.json."
        )
    if not (folder / "config.json").is_file():
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"{folder} has no config.json.", "Name a folder that save_pretrained wrote."
        )
    with untrusted(f"The model in {folder}", ErrorCode.MODEL_REFUSED, "Save the model again."):
        return _vetted(folder, roots)


def _vetted(folder: Path, roots: Sequence[Path]) -> VettedFolder:
    for name in ("config.json", INDEX, SINGLE, *TOKENIZER_FILES):
        refuse_escape(folder, name, roots)
    config = read_config(folder / "config.json")
    model_type = require_supported(config)
    weights = _weights(folder)
    tensors: dict[str, TensorEntry] = {}
    for name in weights:
        refuse_escape(folder, name, roots)
        header = read_header(folder / name)
        twice = sorted(tensors.keys() & header.keys())
        if twice:
            raise KeyholeError(
                ErrorCode.MODEL_REFUSED,
                f"The tensor {twice[0]!r} is in two files of {folder}.",
                "Save the model again.",
            )
        tensors |= header
    vet_against_tensors(config, tensors)
    tokenizer = tuple(name for name in TOKENIZER_FILES if (folder / name).is_file())
    vet_tokenizer_files(folder, tokenizer, config.get("vocab_size") or 0)
    index = () if weights == (SINGLE,) else (INDEX,)
    return VettedFolder(folder, model_type, config, weights, ("config.json", *index, *weights, *tokenizer), tensors)


def plain_name(name: object) -> bool:
    """Whether a file name of an index stays in its folder and is a safetensors file."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and len(name.encode()) <= _LONGEST_NAME
        and Path(name).name == name
        and "\\" not in name
        and name.endswith(".safetensors")
    )


def _weights(folder: Path) -> tuple[str, ...]:
    if (folder / SINGLE).is_file():
        return (SINGLE,)
    if (folder / INDEX).is_file():
        return _indexed(folder)
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{folder} has weights only as {', '.join(pickled[:5])}, which can run code when loaded.",
            _PICKLE_HINT,
        )
    raise KeyholeError(
        ErrorCode.MODEL_REFUSED, f"{folder} has neither {SINGLE} nor {INDEX}.", "Save the model with save_pretrained."
    )


def _indexed(folder: Path) -> tuple[str, ...]:
    """Files of a sharded model."""
    weight_map = read_json_object(folder / INDEX, _INDEX_LIMIT).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise KeyholeError(ErrorCode.MODEL_REFUSED, f"{INDEX} has no weight_map.", "Save the model again.")
    wrong = next((name for name in weight_map.values() if not plain_name(name)), None)
    if wrong is not None:
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{INDEX} names the file {wrong!r}; only safetensors files of the same folder are read.",
            "Save the model again.",
        )
    names = tuple(sorted(set(weight_map.values())))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{folder} lacks {', '.join(missing[:5])}, named by {INDEX}.",
            "Copy it again, whole.",
        )
    return names


def vet_tokenizer_files(folder: Path, names: Sequence[str], vocabulary_size: int) -> None:
    """Check the TOKENIZER_FILES of these names; raises KeyholeError (model_refused)."""
    for name in names:
        path = folder / name
        if name == "tokenizer.json":
            vet_tokenizer(path)
            continue
        content = read_json_object(path, TOKENIZER_CONFIG_LIMIT)
        vet_keys({key: value for key, value in content.items() if key != "_from_auto"}, name)
        decoder = content.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict) or not all(key.isascii() and key.isdigit() for key in decoder):
            raise KeyholeError(
                ErrorCode.MODEL_REFUSED,
                f"{name} has an added_tokens_decoder whose keys are no token ids.",
                "Save the tokenizer again.",
            )
        for key in decoder:
            require_plausible_id(int(key[:20]), vocabulary_size + len(decoder), f"{name} gives an added token")


def refuse_escape(folder: Path, name: str, roots: Sequence[Path]) -> None:
    path = (folder / name).resolve()
    if not any(path.is_relative_to(root.resolve()) for root in (folder, *roots)):
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{name} in {folder} is a link that leads out of the allowed folders.",
            "Copy the file itself into the folder.",
        )
