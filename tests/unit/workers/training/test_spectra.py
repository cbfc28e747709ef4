"""Which matrices a model has, by layout, and their norms against the singular value decomposition."""

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from services.contracts.training.optimizers import AdamW
from services.contracts.training.variants import SigmaReparam
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from workers.attention import seam
from workers.attention.projections import projections
from workers.training import optimizers
from workers.training.linear_layers import linear_layers, matrices
from workers.training.spectra import Spectra
from workers.training.variants import install

OWN_NAMES = {
    "gpt2": {"mlp.c_fc", "mlp.c_proj"},
    "gpt_neox": {"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
    "llama": {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
    "phi3": {"mlp.gate_up_proj", "mlp.down_proj"},
    "opt": {"fc1", "fc2"},
    "gpt_oss": set(),  # experts are stacked in one tensor: no linear layers
}


def _attached(family: str) -> PreTrainedModel:
    model = tiny(family).requires_grad_()
    seam.attach(model)
    return model


@pytest.mark.parametrize("family", OWN_NAMES)
def test_matrices_are_named_within_their_layer(family: str) -> None:
    found = [(matrix.layer, matrix.name) for matrix in matrices(tiny(family))]
    expected = {(layer, name) for layer in range(LAYERS) for name in {"q", "k", "v", "o", *OWN_NAMES[family]}}
    assert len(found) == len(expected) and set(found) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_q_k_v_and_o_are_those_that_heads_use(family: str) -> None:
    """Cut out of fused layers as the tested projections by head cut them."""
    model = tiny(family)
    by_name = {(matrix.layer, matrix.name): matrix.weight() for matrix in matrices(model)}
    config = model.config.get_text_config()
    kv_heads = getattr(config, "num_key_value_heads", None) or HEADS
    for layer in range(LAYERS):
        module = next(m for m in model.modules() if getattr(m, "layer_idx", None) == layer and _has_projection(m))
        of_heads = projections(module, HEADS, kv_heads)
        for name, projection in (("q", of_heads.query), ("k", of_heads.key), ("v", of_heads.value)):
            expected = projection.weight.transpose(1, 2).flatten(0, 1)
            if family == "opt" and name == "q":
                expected = expected / module.scaling  # OPT scales its queries, which is no part of the matrix
            torch.testing.assert_close(by_name[layer, name], expected)
        torch.testing.assert_close(by_name[layer, "o"], of_heads.output.weight.flatten(0, 1).T)


def _has_projection(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_children()}
    return bool(names & {"q_proj", "c_attn", "query_key_value", "qkv_proj"})


def test_embeddings_and_the_output_layer_are_no_linear_layers() -> None:
    model = tiny("llama")
    assert all("lm_head" not in linear.path and "embed" not in linear.path for linear in linear_layers(model))
    assert len(linear_layers(model)) == 7 * LAYERS


@pytest.mark.parametrize("variants", [[], [SigmaReparam()]], ids=["plain", "reparametrised"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_norms_of_weights_and_of_their_last_update_equal_the_svd(family: str, variants) -> None:
    model = _attached(family)
    installed = install(model, variants)
    spectra, made = Spectra(model), optimizers.build(model, AdamW())
    first = spectra.after_step(0)
    assert all(row.update_sigma is None for row in first)
    for step in range(3):
        model.zero_grad()
        model(tokens(2, 11, seed=step), use_cache=False).logits.logsumexp(-1).mean().backward()
        before = installed.effective_weights() | {}
        before = {name: tensor.clone() for name, tensor in before.items()}
        spectra.before_step()
        made[0].step()
        installed.after_step()
        rows = spectra.after_step(step)
    after = installed.effective_weights()
    assert len(rows) == len(first)
    assert {row.step for row in rows} == {2}
    for row in rows:
        old, new = (_cut(state, row.layer, row.matrix, family) for state in (before, after))
        assert (row.height, row.width) == tuple(new.shape)
        # Lanczos in float32; weights in float64
        assert row.weight_sigma == pytest.approx(torch.linalg.svdvals(new)[0].item(), rel=1e-5)
        assert row.update_sigma == pytest.approx(torch.linalg.svdvals(new - old)[0].item(), rel=1e-4)
    assert all(row.update_sigma is None for row in spectra.after_step(3))  # nothing is kept from step to step


def _cut(state: dict[str, torch.Tensor], layer: int, matrix: str, family: str) -> torch.Tensor:
    """The matrix [output, input] out of the plain weights, by the layout of each family."""
    if family == "llama":
        names = {letter: f"self_attn.{letter}_proj" for letter in "qkvo"}
        return state[f"model.layers.{layer}.{names.get(matrix, matrix)}.weight"]
    if family == "gpt2":
        if matrix in "qkv":
            whole = state[f"transformer.h.{layer}.attn.c_attn.weight"].T
            return whole[32 * "qkv".index(matrix) :][:32]
        return state[f"transformer.h.{layer}.{'attn.c_proj' if matrix == 'o' else matrix}.weight"].T
    if matrix in "qkv":
        whole = state[f"gpt_neox.layers.{layer}.attention.query_key_value.weight"]
        return whole.view(HEADS, 3, 8, 32)[:, "qkv".index(matrix)].reshape(32, 32)
    return state[f"gpt_neox.layers.{layer}.{'attention.dense' if matrix == 'o' else matrix}.weight"]
