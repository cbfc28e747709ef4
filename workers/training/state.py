"""What a run goes on from exactly: raw parameters, optimizer, and the little that the loop remembers, in one file.

``resume.safetensors`` holds tensors under ``model.<name>`` and ``optimizer.<number>.<parameter>.<name>``; everything
else is JSON in its metadata. Data need no state: the sequences of a step follow from its number.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from services.contracts.errors import ErrorCode, KeyholeError
from workers.training import optimizers

FILE = "resume.safetensors"
VERSION = 1
_MODEL = "model."
_KEY = "keyhole"  # of the metadata


def save(path: Path, model: nn.Module, optimizer_list: list[Optimizer], remembered: dict[str, Any]) -> None:
    """Write the state; ``remembered`` is whatever JSON holds. Floats keep every bit in it."""
    tensors = {_MODEL + name: tensor for name, tensor in _without_twins(model.state_dict()).items()}
    tensors |= optimizers.state_tensors(model, optimizer_list)
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(stored, path, metadata={_KEY: json.dumps({"version": VERSION, **remembered})})


def load(path: Path, model: nn.Module, optimizer_list: list[Optimizer]) -> dict[str, Any]:
    """Put the state into a model and its optimizers, made as they were; returns what the loop remembered.

    Raises KeyholeError (model_refused) where the file does not fit them.
    """
    with safe_open(path, "pt") as file:
        remembered = json.loads((file.metadata() or {}).get(_KEY, "{}"))
        if remembered.get("version") != VERSION:
            raise _misfit(f"is of version {remembered.get('version')}, and this worker reads version {VERSION}")
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    own = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name.startswith(_MODEL)}
    expected = _without_twins(model.state_dict())
    wrong = list(own.keys() ^ expected.keys()) or [
        name for name, tensor in own.items() if tensor.shape != expected[name].shape
    ]
    if wrong:
        raise _misfit(f"has other tensors than the model: {', '.join(sorted(wrong)[:5])}")
    model.load_state_dict(own, strict=False)  # twins follow the one that is stored
    optimizers.load_state_tensors(
        model, optimizer_list, {name: tensor for name, tensor in tensors.items() if not name.startswith(_MODEL)}
    )
    return remembered


def _without_twins(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with each tensor once, under its first name: tied weights are one."""
    seen: dict[tuple[int, int], str] = {}
    kept: dict[str, Tensor] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tensor.numel())
        if tensor.numel() and seen.setdefault(place, name) != name:
            continue
        kept[name] = tensor
    return kept


def _misfit(problem: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_REFUSED,
        f"The stored state of the run {problem}.",
        "Workers must run the release that began the run; or submit the job again with force.",
    )
