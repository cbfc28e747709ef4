"""The built-in models: a GGUF turned into a safetensors folder once, about 25 s; every later load takes about one.

transformers marks a model out of a GGUF as quantized; the folder holds the plain float32 weights. The rounded model is
made from that folder.
"""

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from services.contracts.settings import Settings
from services.sources.builtin import BASE, CONVERSION, BuiltinModel
from services.sources.file_identity import file_sha256
from workers.models.rounding import rounded

_MARKER = "keyhole.json"


def converted_folder(model: BuiltinModel, settings: Settings) -> Path:
    """The folder of the converted model, made if need be; several processes may ask at once."""
    models = settings.cache / "models"
    folder = models / f"{model.name}-{model.sha256[:16]}-{CONVERSION}"
    if _sound(folder, model):
        return folder
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f"{folder.name}.lock"):
        if not _sound(folder, model):
            for leftover in models.glob(f".{folder.name}-*"):  # its maker died: only the holder of the lock makes one
                shutil.rmtree(leftover)
            making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=models))
            if model.bits is None:
                _convert(model, making)
            else:
                _round(converted_folder(replace(model, name=BASE, bits=None), settings), making, model.bits)
            _mark(making, model)
            shutil.rmtree(folder, ignore_errors=True)
            making.rename(folder)
    return folder


def _convert(model: BuiltinModel, folder: Path) -> None:
    transformers_logging.disable_progress_bar()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        str(model.gguf.parent), gguf_file=model.gguf.name, local_files_only=True
    )
    # tokenizer.ggml.pre is "smollm": digits one by one, then GPT-2's pattern; transformers takes the latter alone
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(
        str(model.gguf.parent), gguf_file=model.gguf.name, dtype=torch.float32, local_files_only=True
    )
    config = {
        key: value
        for key, value in network.config.to_dict().items()
        if not key.startswith("_") and key != "quantization_config"
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tied = {"lm_head.weight"} if network.config.tie_word_embeddings else set()
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items() if name not in tied}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _round(base: Path, folder: Path, bits: int) -> None:
    """The model of another folder with the weights of its linear layers rounded."""
    for path in base.iterdir():
        if path.name not in (_MARKER, "model.safetensors"):
            shutil.copyfile(path, folder / path.name)
    tensors = {
        name: rounded(tensor, bits) if name.endswith("_proj.weight") else tensor
        for name, tensor in load_file(base / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _mark(folder: Path, model: BuiltinModel) -> None:
    files = {path.name: [path.stat().st_size, path.stat().st_mtime_ns, file_sha256(path)] for path in folder.iterdir()}
    (folder / _MARKER).write_text(json.dumps({"gguf_sha256": model.sha256, "files": files}))


def _sound(folder: Path, model: BuiltinModel) -> bool:
    """Whether the folder is whole; bytes are hashed again only where size and time do not vouch for them."""
    try:
        marker = json.loads((folder / _MARKER).read_text())
        if marker["gguf_sha256"] != model.sha256:
            return False
        for name, (size, mtime_ns, sha256) in marker["files"].items():
            stat = (folder / name).stat()
            if (stat.st_size, stat.st_mtime_ns) != (size, mtime_ns) and file_sha256(folder / name) != sha256:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock that the kernel releases when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
