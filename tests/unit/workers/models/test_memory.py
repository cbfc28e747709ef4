"""The memory estimate against the bytes that autograd really keeps."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from workers.attention import seam
from workers.models import LoadedModel
from workers.models.memory import estimate_bytes


class _Watcher:
    """An observer, so that the pass runs as a probe's does."""

    def forward(self, attention) -> None:
        pass

    def backward(self, attention, delta) -> None:
        pass


def test_the_estimate_is_near_the_bytes_alive_when_the_backward_pass_starts(smollm2: LoadedModel) -> None:
    length = 128
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in smollm2.model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    token_ids = torch.randint(smollm2.architecture.vocabulary_size, (1, length))
    with seam.observing(smollm2.model, [_Watcher()]), saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = smollm2.model(token_ids, labels=token_ids, use_cache=False).loss
    assert loss.requires_grad
    logits_and_gradient = 2 * 4 * length * smollm2.architecture.vocabulary_size
    weight_bytes = smollm2.architecture.parameters * 4
    estimate = estimate_bytes(smollm2.architecture, length, 1, "float32") - weight_bytes
    assert estimate == pytest.approx(sum(kept.values()) + logits_and_gradient, rel=0.25)


def test_the_estimate_grows_with_length_and_batch_alike(smollm2: LoadedModel) -> None:
    architecture = smollm2.architecture
    assert estimate_bytes(architecture, 1024, 2, "float32") == estimate_bytes(architecture, 2048, 1, "float32")
    assert estimate_bytes(architecture, 64, 1, "bfloat16") < estimate_bytes(architecture, 64, 1, "float32")
