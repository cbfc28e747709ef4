"""The model that a run starts from: new weights under a seed, or pretrained ones made trainable.

Weights are float32 and everything random in a forward pass is off: a run is a function of its seed and its data. New
weights are drawn on the CPU, where the generator fills tensors one after the other whatever the number of threads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from services.contracts.attention_definition import CONFIG_KEY, AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.contracts.training.configurations import parse_options, transformers_config
from services.sources.model_config import harmless
from workers.attention import parity, seam
from workers.models.loaded import LoadedModel, describe
from workers.models.loading import load_model, parity_tokens
from workers.models.memory import require_memory_for_weights

_NOT_OF_A_CONFIG = ("model_type", "dtype", "torch_dtype", CONFIG_KEY)  # what is not to be handed to its class


@dataclass(frozen=True)
class Start:
    model: PreTrainedModel  # float32, trainable, attention through the seam
    tokenizer: PreTrainedTokenizerFast | None  # the model's own; a new model has none
    parity: dict[str, Any]  # difference of logits from the model's own attention, see workers/attention/parity.py
    pretrained: bool


def prepare_start(
    source: str, identity: str, seed: int, device: str, settings: Settings, checkpoint: Path | None = None
) -> Start:
    """The model of a source as submitted; raises KeyholeError as load_model does, and model_changed, out_of_memory.

    ``checkpoint`` is a folder with the files of the checkpoint that the source names, if it names one.
    """
    parsed = parse_model_source(source)
    if parsed.form != "config":
        loaded = load_model(source, device=device, dtype="float32", settings=settings, checkpoint=checkpoint)
        if loaded.identity != identity:
            raise KeyholeError(
                ErrorCode.MODEL_CHANGED,
                f"The model at {source} is now {loaded.identity}; submitted was {identity}.",
                "Submit the job again to train the model as it is now.",
            )
        return from_loaded(loaded)
    model = _new(configured(parsed), seed, device)
    return Start(model, None, _checked(model, device), pretrained=False)


def configured(source: ModelSource) -> dict[str, Any]:
    """config.json of a ``config:`` source."""
    return transformers_config(source.name, parse_options(source.name, dict(source.options)))


def from_configuration(source: ModelSource, seed: int, device: str) -> PreTrainedModel:
    """A new model of a ``config:`` source with the weights of the seed: equal on every machine with this torch.

    Raises KeyholeError (out_of_memory) before memory is taken for what cannot be trained here.
    """
    return from_config(configured(source), device, seed=seed)


def from_config(config: dict[str, Any], device: str, *, seed: int = 0) -> PreTrainedModel:
    """A new model of a vetted config.json, trainable, attached to the seam; its weights are to be loaded or are drawn.

    The parity check has left it attached to the seam.
    """
    model = _new(config, seed, device)
    _checked(model, device)
    seam.define(model, AttentionDefinition.of_config(config))
    return model


def from_loaded(loaded: LoadedModel) -> Start:
    """A model loaded for measuring, in float32, made trainable."""
    assert loaded.dtype == "float32"
    _make_trainable(loaded.model)
    return Start(loaded.model, loaded.tokenizer, loaded.parity, pretrained=True)


def _new(config: dict[str, Any], seed: int, device: str) -> PreTrainedModel:
    values = {key: value for key, value in harmless(config).items() if key not in _NOT_OF_A_CONFIG}
    built = AutoConfig.for_model(config["model_type"], **values)
    _require_memory(built, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(built, attn_implementation="eager", dtype=torch.float32)
    _make_trainable(model)
    return model.to(device)


def _make_trainable(model: PreTrainedModel) -> None:
    """All weights require gradients; nothing is dropped out, in training mode either."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            # nn.Dropout.p, and numbers such as attention_dropout and layerdrop that modules hand on
            if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(module, nn.Dropout))):
                setattr(module, name, 0.0)
    model.requires_grad_(True)


def _checked(model: PreTrainedModel, device: str) -> dict[str, Any]:
    """Logits with the model's own attention and through the seam, to which it stays attached."""
    model.eval()
    return parity.check(model, parity_tokens(describe(model), device))


def _require_memory(config: Any, device: str) -> None:
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    require_memory_for_weights(sum(parameter.numel() for parameter in outline.parameters()), device)
