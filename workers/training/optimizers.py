"""Optimizers of a model by the contract, their learning rate, and their state as named tensors.

Weight decay is for matrices; vectors, embeddings and the output layer have none. Muon takes the matrices inside the
layers, and AdamW all else.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Muon, Optimizer
from torch.optim import AdamW as TorchAdamW
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.optimizers import AdamW
from services.contracts.training.optimizers import Muon as MuonOptions
from services.contracts.training.optimizers import Optimizer as Options
from services.contracts.training.optimizers import Sgd as SgdOptions

_DECAY = "keyhole_weight_decay"  # torch has a flag of the name decoupled_weight_decay
_TOP = "top_learning_rate"  # of a group: what the schedule's factor is multiplied with


class _Sgd(SGD):
    """SGD whose weight decay is decoupled, as AdamW's is: torch adds it to the gradient, and so to the momentum."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__([{**group, "weight_decay": 0.0, _DECAY: group["weight_decay"]} for group in groups], **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"] if group[_DECAY] else ():
                parameter.mul_(1 - group["lr"] * group[_DECAY])
        return super().step(closure)


def build(model: PreTrainedModel, optimizer: Options) -> list[Optimizer]:
    """The optimizers that together take every trainable parameter once, at the top of their learning rate."""
    matrices, others = _split(model)
    everything = _groups(matrices, others, optimizer.learning_rate, optimizer.weight_decay)
    match optimizer:
        case AdamW():
            betas = (optimizer.beta1, optimizer.beta2)
            return [TorchAdamW(everything, betas=betas, eps=optimizer.epsilon, fused=_fused(model))]
        case SgdOptions():
            return [_Sgd(everything, momentum=optimizer.momentum, fused=_fused(model))]
        case MuonOptions():
            return _muon(model, matrices, others, optimizer)


def set_learning_rate(optimizers: Sequence[Optimizer], optimizer: Options, factor: float) -> float:
    """Set every learning rate to ``factor`` of its top; returns that of the optimizer by name."""
    for each in optimizers:
        for group in each.param_groups:
            group["lr"] = group[_TOP] * factor
    return optimizer.learning_rate * factor


def state_tensors(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The state of the optimizers by number, parameter and name: all that resuming needs beside the parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"optimizer.{number}.{names[id(parameter)]}.{key}": value
        for number, each in enumerate(optimizers)
        for parameter, state in each.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``state_tensors`` gave; optimizers of other parameters raise KeyholeError (model_changed)."""
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        place, _, key = name.rpartition(".")
        found[place][key] = tensor
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    places = {
        f"optimizer.{number}.{names[id(parameter)]}": (each, parameter)
        for number, each in enumerate(optimizers)
        for group in each.param_groups
        for parameter in group["params"]
    }
    if unknown := found.keys() - places.keys():
        raise KeyholeError(
            ErrorCode.MODEL_CHANGED,
            f"The state to resume from has {sorted(unknown)[0]}, which this run's optimizers do not have.",
            "Submit the run again; its state was written by another version.",
        )
    for place, state in found.items():
        each, parameter = places[place]
        each.state[parameter] = {
            # the number of steps stays where its optimizer keeps it: fused ones beside the parameter
            key: tensor.to(parameter.device if key != "step" or _is_fused(each) else "cpu", copy=True)
            for key, tensor in state.items()
        }


def _split(model: PreTrainedModel) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters: matrices, and vectors with embeddings."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding) or module is model.get_output_embeddings()
        for parameter in module.parameters(recurse=False)
    }
    matrices, others = [], []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (matrices if parameter.ndim >= 2 and id(parameter) not in embeddings else others).append(parameter)
    return matrices, others


def _groups(
    matrices: list[nn.Parameter], others: list[nn.Parameter], learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    groups = ((matrices, weight_decay), (others, 0.0))
    return [
        {"params": parameters, "lr": learning_rate, _TOP: learning_rate, "weight_decay": decay}
        for parameters, decay in groups
        if parameters
    ]


def _muon(
    model: PreTrainedModel, matrices: list[nn.Parameter], others: list[nn.Parameter], options: MuonOptions
) -> list[Optimizer]:
    flat = [parameter for parameter in matrices if parameter.ndim == 2]
    rest = [parameter for parameter in matrices if parameter.ndim != 2]  # the stacked experts of a mixture
    by_factor: dict[float, list[nn.Parameter]] = defaultdict(list)
    transposed = {
        id(parameter) for module in model.modules() if isinstance(module, Conv1D) for parameter in module.parameters()
    }
    for parameter in flat:
        # Muon's own factor √max(1, outputs/inputs) takes rows for outputs; in Conv1D they are inputs
        inputs, outputs = parameter.shape
        by_factor[math.sqrt(outputs / inputs) if id(parameter) in transposed else 1.0].append(parameter)
    groups = [
        {
            "params": parameters,
            "lr": options.learning_rate * factor,
            _TOP: options.learning_rate * factor,
            "weight_decay": options.weight_decay / factor,  # Muon multiplies it with the learning rate
        }
        for factor, parameters in by_factor.items()
    ]
    optimizers: list[Optimizer] = [Muon(groups, momentum=options.momentum)] if groups else []
    adamw = _groups(rest, others, options.adamw_learning_rate, options.weight_decay)
    if adamw:
        optimizers.append(TorchAdamW(adamw, betas=(0.9, 0.95), fused=_fused(model)))
    return optimizers


def _fused(model: PreTrainedModel) -> bool:
    """One kernel per step (measured on a CPU: see docs/training/variants.md); there is none for other devices."""
    return model.device.type in ("cpu", "cuda", "mps")


def _is_fused(optimizer: Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))
