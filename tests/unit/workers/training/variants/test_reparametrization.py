"""σReparam and spectral normalisation in float64 against the singular value decomposition and explicit W·γ/σ(W)."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.variants import SigmaReparam, SpectralNorm
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from workers.attention import seam
from workers.training.linear_layers import LinearLayer, Part
from workers.training.variants import Installed, install
from workers.training.variants.reparametrization import Reparametrised

LENGTH = 13
MIXTURES = ("gpt_oss",)
DENSE = [family for family in FAMILIES if family not in MIXTURES]
KV_HEADS = {"gpt2": HEADS, "gpt2-inverse-layer": HEADS, "gpt_neox": HEADS, "gptj": HEADS, "opt": HEADS}  # others have 2
FUSED = ("c_attn", "query_key_value", "qkv_proj")


def _trainable(family: str, **options) -> PreTrainedModel:
    model = tiny(family, **options).requires_grad_()
    seam.attach(model)
    return model


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(ids, use_cache=False).logits


def _linear_weights(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Linear layers by the name of their weight, the output layer left out."""
    return {
        f"{name}.weight": module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and name != "lm_head" and name != "embed_out"
    }


def _by_part(name: str, module: nn.Module, weight: Tensor, family: str) -> Tensor:
    """W/σ(W), written out for each layout: of q, k and v by themselves."""
    matrix = weight.T if isinstance(module, Conv1D) else weight
    if name.split(".")[-2] in FUSED:
        kv_heads = KV_HEADS.get(family, 2)
        d = len(matrix) // (HEADS + 2 * kv_heads)
        rows = list(range(len(matrix)))
        if family == "gpt_neox":  # head by head: q, k, v of the first, of the second, …
            parts = [[row for row in rows if row // d % 3 == which] for which in range(3)]
        else:
            ends = (HEADS * d, (HEADS + kv_heads) * d)
            parts = [rows[: ends[0]], rows[ends[0] : ends[1]], rows[ends[1] :]]
        factor = torch.empty(len(matrix), dtype=matrix.dtype)
        for part in parts:
            factor[part] = 1 / torch.linalg.svdvals(matrix[part])[0]
        matrix = factor[:, None] * matrix
    else:
        matrix = matrix / torch.linalg.svdvals(matrix)[0]
    return matrix.T if isinstance(module, Conv1D) else matrix


def _iterated(installed: Installed) -> None:
    """The start is Lanczos' to 10⁻⁴ in u and v: some iterations more, and σ is exact to 10⁻⁸."""
    for _ in range(50):
        installed.after_step()


def _reparametrised(model: PreTrainedModel) -> list[Reparametrised]:
    return [module for module in model.modules() if isinstance(module, Reparametrised)]


@pytest.mark.parametrize("family", DENSE)
def test_from_scratch_every_matrix_is_divided_by_its_largest_singular_value(family: str) -> None:
    model, ids = _trainable(family), tokens(2, LENGTH)
    plain = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    for twin in model.all_tied_weights_keys:
        del plain[twin]
    linear = _linear_weights(model)
    expected = {
        name: _by_part(name, linear[name], weight, family) if name in linear else weight
        for name, weight in plain.items()
    }
    with torch.no_grad():
        reference = functional_call(model, expected, (ids,), {"use_cache": False}).logits
        installed = install(model, [SigmaReparam()])
        _iterated(installed)
        found = installed.effective_weights()
        for name in linear:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-9)
        # rotary and norm layers compute in float32 inside a float64 model
        torch.testing.assert_close(_logits(model, ids), reference, rtol=1e-4, atol=1e-4)
    assert found.keys() == plain.keys()


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "phi3"])
def test_a_pretrained_model_keeps_its_function_under_sigma_reparam(family: str) -> None:
    model, ids = _trainable(family), tokens(2, LENGTH)
    with torch.no_grad():
        before = _logits(model, ids)
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        installed = install(model, [SigmaReparam()], pretrained=True)
        torch.testing.assert_close(_logits(model, ids), before, rtol=1e-6, atol=1e-6)
        for name, weight in installed.effective_weights().items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("variant", [SigmaReparam(), SpectralNorm()])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_gradients_equal_those_of_the_explicit_quotient_by_svd(family: str, variant) -> None:
    model, ids = _trainable(family), tokens(2, LENGTH)
    linear = _linear_weights(model)
    raw = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    installed = install(model, [variant])
    _iterated(installed)
    target = _logits(model, ids).logsumexp(-1).sum()
    target.backward()
    explicit = {
        name: _by_part(name, linear[name], weight, family) if name in linear else weight for name, weight in raw.items()
    }
    plain = tiny(family).requires_grad_()
    seam.attach(plain)
    expected = functional_call(plain, explicit, (ids,), {"use_cache": False}).logits.logsumexp(-1).sum()
    gradients = dict(zip(raw, torch.autograd.grad(expected, list(raw.values())), strict=True))
    torch.testing.assert_close(target, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        if name.endswith(".gamma"):
            continue
        plain_name = name.replace(".parametrizations.weight.original", ".weight")
        apart = (parameter.grad - gradients[plain_name]).norm() / gradients[plain_name].norm().clamp_min(1e-6)
        assert apart < 1e-3, (
            name
        )  # u and v converge as slowly as the gap between the first two singular values is small


def test_the_power_iteration_converges_to_the_largest_singular_value_of_every_part() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(6, 9, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(9, 6, generator=generator))
    parts = [Part("q", torch.tensor([0, 3, 6])), Part("k", torch.tensor([1, 4, 7])), Part("v", torch.tensor([2, 5, 8]))]
    reparametrised = Reparametrised(LinearLayer(0, "fused", linear, parts), learned=True, keep_function=False)
    for state in (reparametrised.u, reparametrised.v):
        state.copy_(torch.randn(state.shape, generator=generator))
    for _ in range(500):
        reparametrised.iterate(linear.weight.detach())
    expected = torch.stack([torch.linalg.svdvals(linear.weight.detach()[part.outputs])[0] for part in parts])
    torch.testing.assert_close(reparametrised.sigma(linear.weight.detach()), expected, rtol=1e-9, atol=0)


def test_gamma_is_the_spectral_norm_of_the_weight_and_gets_the_gradient_of_it() -> None:
    model, ids = _trainable("llama"), tokens(2, LENGTH)
    installed = install(model, [SigmaReparam()])
    _iterated(installed)
    for reparametrised in _reparametrised(model):
        assert isinstance(reparametrised.gamma, nn.Parameter)
        with torch.no_grad():
            reparametrised.gamma.fill_(1.7)
    for name, weight in installed.effective_weights().items():
        if name in _linear_weights(model):
            torch.testing.assert_close(torch.linalg.svdvals(weight)[0].item(), 1.7, rtol=1e-6, atol=0)

    def loss() -> Tensor:
        return _logits(model, ids).logsumexp(-1).sum()

    loss().backward()
    gamma = _reparametrised(model)[3].gamma
    step = 1e-3
    with torch.no_grad():
        gamma += step
        above = loss()
        gamma -= 2 * step
        below = loss()
    # central differences; norm layers of the model round to float32
    torch.testing.assert_close(gamma.grad[0], (above - below) / (2 * step), rtol=1e-2, atol=1e-3)


def test_spectral_norm_has_no_gamma_to_learn() -> None:
    model = _trainable("gpt2")
    names = {name for name, _ in model.named_parameters()}
    install(model, [SpectralNorm()])
    learned = {name.replace(".parametrizations.weight.original", ".weight") for name, _ in model.named_parameters()}
    assert learned == names
    assert all((reparametrised.gamma == 1).all() for reparametrised in _reparametrised(model))


def test_the_estimate_follows_the_weights_while_they_are_trained() -> None:
    model, ids = _trainable("gpt2"), tokens(4, LENGTH)
    installed = install(model, [SigmaReparam()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(30):
        _logits(model, ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        installed.after_step()
    effective = installed.effective_weights()
    for name in _linear_weights(model):
        if name.endswith("c_attn.weight"):
            continue
        module = model.get_submodule(name.removesuffix(".weight"))
        gamma = module.parametrizations.weight[0].gamma.item()
        # one iteration a step: the estimate is from below, so that the true norm is a little above γ
        assert gamma * (1 - 1e-9) <= torch.linalg.svdvals(effective[name])[0].item() <= gamma * 1.02


def test_passes_change_nothing_so_that_only_steps_do() -> None:
    model, ids = _trainable("gpt2", dtype=torch.float32), tokens(2, LENGTH)
    installed = install(model.train(), [SigmaReparam()])
    model.eval()  # GPT-2 drops out weights in training mode
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(3):
        _logits(model, ids).sum().backward()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    installed.after_step()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all(name.endswith((".u", ".v")) for name in changed)


def test_the_state_of_the_power_iteration_is_part_of_the_models_state() -> None:
    model, again = (_trainable("gpt2", dtype=torch.float32) for _ in range(2))
    installed, installed_again = install(model, [SigmaReparam()]), install(again, [SigmaReparam()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        _logits(model, tokens(2, LENGTH)).logsumexp(-1).mean().backward()
        optimizer.step()
        installed.after_step()
    again.load_state_dict(model.state_dict())
    for each in (installed, installed_again):
        each.after_step()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_arithmetic_of_the_weights_stays_float32_under_autocast() -> None:
    model = _trainable("gpt2", dtype=torch.float32)
    install(model, [SigmaReparam()])
    layer = model.transformer.h[0].mlp.c_fc
    exact = layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, exact)


def test_experts_stacked_in_one_tensor_are_refused_by_name() -> None:
    with pytest.raises(KeyholeError, match=r"experts.* has 3 axes") as refused:
        install(_trainable("gpt_oss"), [SigmaReparam()])
    assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_a_matrix_of_zeros_is_refused_by_name() -> None:
    model = _trainable("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight.zero_()
    with pytest.raises(KeyholeError, match=r"transformer\.h\.1\.attn\.c_proj\.weight \(o\) has spectral norm 0"):
        install(model, [SpectralNorm()])


def test_embeddings_norms_and_the_output_layer_are_left_alone() -> None:
    model = _trainable("llama")
    count = sum(isinstance(module, nn.Linear) for module in model.modules()) - 1
    install(model, [SigmaReparam()])
    assert len(_reparametrised(model)) == count == 7 * LAYERS
    assert "lm_head.weight" in dict(model.named_parameters())
