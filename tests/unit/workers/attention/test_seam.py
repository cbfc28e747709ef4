"""The seam: what observers see, when it is let go, who is refused, and that nothing leaks between models or threads."""

import gc
import threading
import weakref

import pytest
import torch
import transformers
from torch import Tensor

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers import reference
from tests.unit.workers.families import DISPATCHLESS, FAMILIES, HEADS, LAYERS, tiny, tokens
from workers.attention import seam
from workers.attention.inputs import AttentionInputs, LayerAttention

LENGTH = 19


class Notes:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.seen: list[LayerAttention] = []
        self.deltas: dict[int, Tensor] = {}

    def forward(self, attention: LayerAttention) -> None:
        self.seen.append(attention)

    def backward(self, attention: LayerAttention, delta: Tensor) -> None:
        self.deltas[attention.layer] = delta


def _attached(family: str = "llama", **options) -> transformers.PreTrainedModel:
    model = tiny(family, **options)
    seam.attach(model)
    return model


def _logits(model: transformers.PreTrainedModel, ids: Tensor) -> Tensor:
    return model(ids, use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_observers_see_outputs_and_gradients_of_every_layer(family: str) -> None:
    model, ids, notes = _attached(family), tokens(2, LENGTH), Notes()
    with seam.observing(model, [notes]):
        logits = _logits(model, ids)
        torch.autograd.backward(logits.logsumexp(-1).sum())
    recording = reference.record(model, ids)
    expected = torch.autograd.grad(recording.logits.logsumexp(-1).sum(), [layer.output for layer in recording.layers])
    assert [attention.layer for attention in notes.seen] == list(range(LAYERS))
    for attention, layer, delta in zip(notes.seen, recording.layers, expected, strict=True):
        torch.testing.assert_close(attention.output, layer.output.detach().transpose(1, 2), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(notes.deltas[attention.layer], delta.transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_several_backward_passes_of_one_forward_pass_are_each_seen_and_the_layer_let_go_after(family: str) -> None:
    model, ids, notes = _attached(family), tokens(1, LENGTH), Notes()
    found = []
    with seam.observing(model, [notes], backwards=2):
        logits = _logits(model, ids)
        key = weakref.ref(notes.seen[0].key)
        for target, last in ((logits.logsumexp(-1).sum(), False), (logits.square().sum(), True)):
            torch.autograd.backward(target, retain_graph=not last)
            found.append(dict(notes.deltas))
    notes.seen.clear()
    gc.collect()
    assert key() is None
    recording = reference.record(model, ids)
    outputs = [layer.output for layer in recording.layers]
    for deltas, target in zip(found, (recording.logits.logsumexp(-1), recording.logits.square()), strict=True):
        for layer, expected in enumerate(torch.autograd.grad(target.sum(), outputs, retain_graph=True)):
            torch.testing.assert_close(deltas[layer], expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_own_token_credit_leaves_the_logits_alone(family: str) -> None:
    model, ids = _attached(family), tokens(2, LENGTH)
    plain = _logits(model, ids)
    with seam.observing(model, [Notes()], credit="own_token"):
        assert torch.equal(_logits(model, ids), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_token_changes_no_earlier_output(family: str) -> None:
    model, ids, before, after = _attached(family), tokens(1, LENGTH), Notes(), Notes()
    with torch.no_grad():
        with seam.observing(model, [before]):
            _logits(model, ids)
        ids[0, LENGTH - 4] = 3 + (ids[0, LENGTH - 4] - 2) % 50
        with seam.observing(model, [after]):
            _logits(model, ids)
    for one, other in zip(before.seen, after.seen, strict=True):
        assert torch.equal(one.output[:, : LENGTH - 4], other.output[:, : LENGTH - 4])
        assert not torch.equal(one.output[:, LENGTH - 4 :], other.output[:, LENGTH - 4 :])


def test_observed_tensors_are_let_go_as_the_backward_pass_leaves_their_layer() -> None:
    model = _attached()
    kept: dict[int, weakref.ref] = {}
    alive_above: list[int] = []

    class Watcher:
        def forward(self, attention: LayerAttention) -> None:
            kept[attention.layer] = weakref.ref(attention)

        def backward(self, attention: LayerAttention, delta: Tensor) -> None:
            alive_above.append(sum(kept[layer]() is not None for layer in range(attention.layer + 1, LAYERS)))

    gc.disable()  # reference counting alone must do it
    try:
        with seam.observing(model, [Watcher()]):
            logits = _logits(model, tokens(1, LENGTH))
            torch.autograd.backward(logits.sum())
        assert alive_above == [0] * LAYERS
        assert all(reference() is None for reference in kept.values())
    finally:
        gc.enable()


def test_a_pass_that_is_never_differentiated_keeps_nothing() -> None:
    model, notes = _attached(), Notes()
    gc.disable()
    try:
        with seam.observing(model, [notes]):
            logits = _logits(model, tokens(1, LENGTH))
        watched = [weakref.ref(attention) for attention in notes.seen]
        notes.seen.clear()
        del logits
        assert all(reference() is None for reference in watched)
    finally:
        gc.enable()


def test_the_route_slot_replaces_how_scores_become_outputs() -> None:
    def newest_key_only(inputs: AttentionInputs, credit: str) -> Tensor:
        groups = inputs.query.shape[1] // inputs.key.shape[1]
        return inputs.value.repeat_interleave(groups, 1)

    model, notes = _attached(), Notes()
    with torch.no_grad(), seam.observing(model, [notes], route=newest_key_only):
        _logits(model, tokens(1, LENGTH))
    for attention in notes.seen:
        assert torch.equal(attention.output, attention.value.repeat_interleave(HEADS // 2, 1).transpose(1, 2))


def test_the_query_gradient_slot_changes_gradients_of_queries_only() -> None:
    """With no gradient into the queries, their projection's weights get none, keys' and values' get what they had."""

    def gradients(**slots) -> dict[str, Tensor]:
        model = _attached("qwen2").requires_grad_(True)
        with seam.observing(model, **slots):
            _logits(model, tokens(1, LENGTH)).logsumexp(-1).sum().backward()
        attention = model.model.layers[LAYERS - 1].self_attn
        return {name: getattr(attention, name).weight.grad for name in ("q_proj", "k_proj", "v_proj")}

    plain = gradients()
    cut = gradients(query_gradient=lambda inputs: inputs.query * 0 + inputs.query.detach())
    assert plain["q_proj"].abs().max() > 0
    assert (cut["q_proj"] == 0).all()
    for name in ("k_proj", "v_proj"):
        torch.testing.assert_close(cut[name], plain[name])


def test_bindings_of_two_models_do_not_meet() -> None:
    teacher, student = _attached(seed=1), _attached(seed=2)
    of_teacher, of_student, ids = Notes(), Notes(), tokens(1, LENGTH)
    with torch.no_grad(), seam.observing(teacher, [of_teacher]), seam.observing(student, [of_student]):
        _logits(teacher, ids)
        assert len(of_teacher.seen) == LAYERS and not of_student.seen
        _logits(student, ids)
    assert len(of_teacher.seen) == len(of_student.seen) == LAYERS


def test_an_inner_block_hides_the_outer_one_and_ends_with_it() -> None:
    model, outer, inner, ids = _attached(), Notes(), Notes(), tokens(1, LENGTH)
    with torch.no_grad(), seam.observing(model, [outer]):
        with seam.observing(model, [inner]):
            _logits(model, ids)
        assert len(inner.seen) == LAYERS and not outer.seen
        _logits(model, ids)
    _logits(model, ids)
    assert len(inner.seen) == len(outer.seen) == LAYERS


def test_another_thread_is_not_observed() -> None:
    model, notes, ids = _attached(), Notes(), tokens(1, LENGTH)
    with seam.observing(model, [notes]):
        thread = threading.Thread(target=_logits, args=(model, ids))
        thread.start()
        thread.join()
    assert not notes.seen


@pytest.mark.parametrize("family", DISPATCHLESS)
def test_architectures_that_never_call_the_function_are_refused(family: str) -> None:
    with pytest.raises(KeyholeError) as refusal:
        _attached(family)
    assert refusal.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_a_model_that_accepts_the_setting_and_does_not_call_is_refused_at_the_first_pass() -> None:
    config = DISPATCHLESS["bloom"]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=seam.IMPLEMENTATION)
    with pytest.raises(KeyholeError, match="once per layer") as refusal, seam.observing(model):
        _logits(model, tokens(1, LENGTH))
    assert refusal.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_a_model_whose_layers_share_one_attention_is_refused() -> None:
    model = _attached()
    model.model.layers[1].self_attn = model.model.layers[0].self_attn
    with pytest.raises(KeyholeError, match=r"\{0: 2\}"), seam.observing(model):
        _logits(model, tokens(1, LENGTH))


def test_attention_in_both_directions_is_refused() -> None:
    config = transformers.BertConfig(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        is_decoder=False,
    )
    model = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
    seam.attach(model)
    with pytest.raises(KeyholeError) as refusal, seam.observing(model):
        model(tokens(1, LENGTH))
    assert refusal.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_dropout_of_attention_weights_is_refused() -> None:
    model = transformers.GPT2LMHeadModel(FAMILIES["gpt2"]()).train()
    seam.attach(model)
    with pytest.raises(KeyholeError, match="evaluation mode"), seam.observing(model):
        _logits(model, tokens(1, LENGTH))


def test_own_token_credit_is_refused_where_a_convolution_mixes_positions() -> None:
    model = _attached()
    model.model.layers[0].add_module("mixer", torch.nn.Conv1d(32, 32, 3))
    with pytest.raises(KeyholeError, match="own_token") as refusal, seam.observing(model, credit="own_token"):
        pass
    assert refusal.value.code == ErrorCode.MODEL_UNSUPPORTED
