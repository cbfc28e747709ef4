"""A tiny model wrapped as the loader would hand it to a probe."""

import torch
from transformers import PreTrainedModel

from workers.attention import parity
from workers.models.loaded import LoadedModel, describe


def loaded(model: PreTrainedModel) -> LoadedModel:
    ids = torch.arange(3, 19)[None]
    difference = parity.check(model, ids)
    dtype = str(model.dtype).removeprefix("torch.")
    return LoadedModel(model, None, "test", describe(model), difference, "cpu", dtype)
