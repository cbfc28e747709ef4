"""Which optimizer takes which parameter, against hand-made ones, and a state that goes on bit for bit."""

import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.optimizers import AdamW, Muon, Sgd
from services.contracts.training.variants import SigmaReparam
from tests.unit.workers.families import tiny, tokens
from workers.attention import seam
from workers.training import optimizers
from workers.training.variants import install

OPTIONS = {
    "adamw": AdamW(learning_rate=3e-3, weight_decay=0.2, beta1=0.8, beta2=0.9),
    "sgd": Sgd(learning_rate=0.05, weight_decay=0.1, momentum=0.7),
    "muon": Muon(learning_rate=0.01, weight_decay=0.3, momentum=0.9, adamw_learning_rate=2e-3),
}
every_optimizer = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
FACTORS = (0.5, 1.0, 0.25)


def _model(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    model = tiny(family, dtype=dtype).requires_grad_()
    seam.attach(model)
    return model


def _backward(model: PreTrainedModel, step: int) -> None:
    model.zero_grad()
    ids = tokens(12, 17, seed=step)  # enough for gradients of full rank, which Muon makes orthogonal
    model(ids, use_cache=False).logits.logsumexp(-1).mean().backward()


def _stepped(model: PreTrainedModel, options: Any) -> dict[str, Tensor]:
    made = optimizers.build(model, options)
    for step, factor in enumerate(_factors(options)):
        _backward(model, step)
        assert optimizers.set_learning_rate(made, options, factor) == options.learning_rate * factor
        for each in made:
            each.step()
    return dict(model.named_parameters())


def _factors(options: Any) -> tuple[float, ...]:
    """Few steps of Muon: it computes in bfloat16, and what that rounds grows from step to step."""
    return FACTORS[:2] if options.name == "muon" else FACTORS


def _decay_of(group: dict[str, Any]) -> float:
    return group.get("keyhole_weight_decay", group["weight_decay"])


def _is_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and not any(part in name for part in ("wte", "wpe", "embed", "lm_head"))


def _by_hand(model: PreTrainedModel, options: Any) -> dict[str, Tensor]:
    """The updates as their papers write them, one parameter at a time."""
    state: dict[str, list[Tensor]] = {}
    for step, factor in enumerate(_factors(options)):
        _backward(model, step)
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            matrix = _is_matrix(name, parameter)
            decay = options.weight_decay if matrix else 0.0
            with torch.no_grad():
                if options.name == "sgd":
                    kept = state.setdefault(name, [torch.zeros_like(parameter)])
                    kept[0] = options.momentum * kept[0] + gradient
                    parameter *= 1 - options.learning_rate * factor * decay
                    parameter -= options.learning_rate * factor * kept[0]
                elif options.name == "muon" and matrix:
                    kept = state.setdefault(name, [torch.zeros_like(parameter)])
                    kept[0] = options.momentum * kept[0] + (1 - options.momentum) * gradient
                    update = (1 - options.momentum) * gradient + options.momentum * kept[0]
                    conv1d = "c_" in name
                    inputs, outputs = parameter.shape if conv1d else parameter.shape[::-1]
                    rate = options.learning_rate * factor
                    parameter *= 1 - rate * decay
                    parameter -= rate * math.sqrt(max(1, outputs / inputs)) * _orthogonalised(update)
                else:
                    first, second = (options.beta1, options.beta2) if options.name == "adamw" else (0.9, 0.95)
                    rate = (options.learning_rate if options.name == "adamw" else options.adamw_learning_rate) * factor
                    kept = state.setdefault(name, [torch.zeros_like(parameter), torch.zeros_like(parameter)])
                    kept[0] = first * kept[0] + (1 - first) * gradient
                    kept[1] = second * kept[1] + (1 - second) * gradient.square()
                    mean, square = kept[0] / (1 - first ** (step + 1)), kept[1] / (1 - second ** (step + 1))
                    parameter *= 1 - rate * decay
                    parameter -= rate * mean / (square.sqrt() + 1e-8)
    return dict(model.named_parameters())


def _orthogonalised(update: Tensor) -> Tensor:
    """Five steps of the quintic Newton-Schulz iteration with Jordan's coefficients, in bfloat16 as he does."""
    x = update.bfloat16()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if wide else x.T).to(update.dtype)


@every_optimizer
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_steps_equal_those_written_by_hand(family: str, options: Any) -> None:
    found, expected = _stepped(_model(family), options), _by_hand(_model(family), options)
    started = dict(_model(family).named_parameters())
    for name, parameter in found.items():
        moved = (expected[name] - started[name]).norm()
        # Muon computes in bfloat16, here in another order: directions depart by up to 0.15 (measured), lengths by
        # 0.003; another momentum departs by 0.3, another rate or decay shows in the length
        allowed = (0.2, 0.02) if options.name == "muon" else (1e-6, 1e-6)
        assert (parameter - expected[name]).norm() <= allowed[0] * moved.clamp_min(1e-12), name
        assert abs((parameter - started[name]).norm() - moved) <= allowed[1] * moved.clamp_min(1e-12), name


@every_optimizer
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_oss", "opt"])
def test_every_parameter_is_taken_once_and_only_matrices_decay(family: str, options: Any) -> None:
    model = _model(family, torch.float32)
    groups = [group for each in optimizers.build(model, options) for group in each.param_groups]
    taken = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(taken) == sorted(id(parameter) for parameter in model.parameters())
    decayed = {id(parameter) for group in groups if _decay_of(group) for parameter in group["params"]}
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    assert embeddings.isdisjoint(decayed)
    for name, parameter in model.named_parameters():
        inside = parameter.ndim >= 2 and "embed" not in name and "wpe" not in name and id(parameter) not in embeddings
        assert (id(parameter) in decayed) == inside, name


@every_optimizer
def test_frozen_parameters_are_left_out(options: Any) -> None:
    model = _model("gpt2", torch.float32)
    model.transformer.wte.requires_grad_(False)
    taken = {
        id(parameter)
        for each in optimizers.build(model, options)
        for g in each.param_groups
        for parameter in g["params"]
    }
    assert id(model.transformer.wte.weight) not in taken and id(model.transformer.wpe.weight) in taken


@every_optimizer
def test_a_state_put_back_goes_on_bit_for_bit(options: Any, tmp_path) -> None:
    undisturbed, interrupted = _model("gpt2", torch.float32), _model("gpt2", torch.float32)
    for model in (undisturbed, interrupted):
        install(model, [SigmaReparam()])
    made = {id(model): optimizers.build(model, options) for model in (undisturbed, interrupted)}

    def take(model: PreTrainedModel, step: int) -> None:
        _backward(model, step)
        optimizers.set_learning_rate(made[id(model)], options, FACTORS[step % 3])
        for each in made[id(model)]:
            each.step()

    for step in range(3):
        take(undisturbed, step)
        take(interrupted, step)
    save_file(optimizers.state_tensors(interrupted, made[id(interrupted)]), tmp_path / "state.safetensors")
    again = _model("gpt2", torch.float32)
    install(again, [SigmaReparam()])
    again.load_state_dict(interrupted.state_dict())
    made[id(again)] = optimizers.build(again, options)
    optimizers.load_state_tensors(again, made[id(again)], load_file(tmp_path / "state.safetensors"))
    for step in range(3, 6):
        take(undisturbed, step)
        take(again, step)
    for name, parameter in undisturbed.named_parameters():
        assert torch.equal(parameter, dict(again.named_parameters())[name]), name


def test_a_state_of_another_model_is_refused_by_name() -> None:
    model, other = _model("gpt2", torch.float32), _model("llama", torch.float32)
    made = optimizers.build(model, AdamW())
    _backward(model, 0)
    made[0].step()
    tensors = optimizers.state_tensors(model, made)
    with pytest.raises(KeyholeError, match=r"has optimizer\.0\.transformer") as refused:
        optimizers.load_state_tensors(other, optimizers.build(other, AdamW()), tensors)
    assert refused.value.code == ErrorCode.MODEL_CHANGED


def test_muon_takes_conv1d_by_its_outputs() -> None:
    """A step of an orthogonal update has norm lr·√max(1, outputs/inputs), whichever way the layer stores its weight."""
    model = _model("gpt2", torch.float32)
    options = Muon(learning_rate=0.01, weight_decay=0)
    layer = model.transformer.h[0].mlp
    before = {name: getattr(layer, name).weight.detach().clone() for name in ("c_fc", "c_proj")}
    made = optimizers.build(model, options)
    _backward(model, 0)
    for each in made:
        each.step()
    for name, expected in (("c_fc", 0.01 * 2), ("c_proj", 0.01)):  # 128 outputs of 32 inputs, and back
        linear: nn.Module = getattr(layer, name)
        norm = torch.linalg.matrix_norm(linear.weight.detach() - before[name], ord=2).item()
        assert 0.7 * expected < norm < 1.3 * expected  # the quintic leaves singular values within about 0.7 and 1.2
