"""The memory estimate against the bytes that autograd really keeps."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.optimizers import AdamW
from services.contracts.training.training import TrainingParameters
from tests.unit.workers.families import tiny, tokens
from workers.attention import seam
from workers.models import LoadedModel, memory
from workers.models.loaded import Architecture, describe
from workers.models.memory import estimate_bytes
from workers.training import optimizers


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


# of GPT-2. Its float32 logits alone in a pass of 65,536 sequences of 16 tokens: 65,536 · 16 · 50,257 · 4 = 2·10¹¹ bytes
_GPT2 = Architecture("gpt2", 12, 12, 12, 64, 768, 50257, 1024, 124_439_808)
_THERE = 16_000_000_000


@pytest.fixture(autouse=True)
def memory_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=_THERE))


def _training(**changed: int) -> TrainingParameters:
    return TrainingParameters.model_validate({"steps": 1, "length": 16, **changed})


def test_a_training_holds_what_weights_gradients_and_moments_take_beside_its_passes() -> None:
    model = tiny("gpt2", dtype=torch.float32).requires_grad_()
    seam.attach(model)
    asked = _training(batch=2)
    ids = tokens(asked.batch, asked.length, seed=0)
    (optimizer,) = optimizers.build(model, AdamW())
    model(ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    held = [tensor for each in model.parameters() for tensor in (each, each.grad)]
    held += [tensor for state in optimizer.state.values() for tensor in state.values() if tensor.ndim]  # no step counts
    held_bytes = sum(tensor.nbytes for tensor in held if tensor is not None)

    architecture = describe(model)
    frozen_weights = sum(parameter.nbytes for parameter in model.parameters())
    passes = estimate_bytes(architecture, asked.length, asked.batch, "float32") - frozen_weights  # tested above
    assert memory.training_bytes(architecture, asked) == held_bytes + passes


def test_a_training_step_larger_than_the_device_is_refused_with_both_sizes_and_what_to_lower() -> None:
    asked = _training(batch=65_536, sequences_per_step=1_000_000)
    with pytest.raises(KeyholeError) as refused:
        memory.require_training_memory(_GPT2, asked, "cpu")
    assert refused.value.code is ErrorCode.OUT_OF_MEMORY
    for named in ("65,536", f"{memory.training_bytes(_GPT2, asked):,}", f"{_THERE:,}"):
        assert named in refused.value.message
    assert "Lower batch" in refused.value.hint
    assert "lower length" in refused.value.hint


def test_no_more_than_a_process_s_share_of_a_step_is_counted() -> None:
    # 2 sequences of 16 tokens in a pass. 16 bytes of weight, gradient and moments; 12 layers of 16 · 768 kept floats
    # and 12 bytes of logits for each token
    counted = 124_439_808 * 16 + 2 * 16 * (12 * 16 * 768 * 4 + 50_257 * 12)
    small = _training(batch=2, sequences_per_step=4)
    assert memory.training_bytes(_GPT2, small) == counted
    assert memory.training_bytes(_GPT2, _training(batch=65_536, sequences_per_step=2)) == counted
    assert memory.training_bytes(_GPT2, _training(batch=65_536, sequences_per_step=4, processes=2)) == counted
    memory.require_training_memory(_GPT2, small, "cpu")


def test_processes_on_one_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _training(batch=2, sequences_per_step=4, processes=2)
    needed = 2 * memory.training_bytes(_GPT2, asked)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=needed))
    memory.require_training_memory(_GPT2, asked, "cpu")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=needed - 1))
    with pytest.raises(KeyholeError, match="in 2 processes"):
        memory.require_training_memory(_GPT2, asked, "cpu")
