"""NATQ through whole models: parameter gradients against brute force, training that stays finite, the solver log."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.training.variants import Natq
from tests.unit.workers import natq_reference
from tests.unit.workers.attention.natq_inputs import attention_inputs, detached
from tests.unit.workers.families import FAMILIES, LAYERS, tiny, tokens
from workers.attention import natq, seam
from workers.training.variants import install
from workers.training.variants import natq as variant

LENGTH = 13  # longer than the families' window
EXACT = Natq(solver="exact")
CG = Natq(solver="cg", tolerance=1e-9, iterations=200)


def _loss(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids, use_cache=False).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _gradients(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    _loss(model, ids).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _trainable(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    model = tiny(family, dtype=dtype).requires_grad_(True)
    seam.attach(model)
    return model


def _under(model: PreTrainedModel, ids: Tensor, natq_: Natq) -> dict[str, Tensor]:
    with seam.observing(model, query_gradient=variant.query_gradient(natq_, variant.SolverLog())):
        return _gradients(model, ids)


@pytest.mark.parametrize("chosen", [EXACT, CG], ids=["exact", "cg"])
@pytest.mark.parametrize("family", ["gpt2", "gpt2-inverse-layer", "llama", "qwen3", "mistral", "gpt_neox"])
def test_parameter_gradients_of_a_whole_model_are_those_of_brute_force(family: str, chosen: Natq) -> None:
    """Through rotary embeddings, query norms, shared keys, windows and other scalings, back to the embeddings."""
    model, ids = _trainable(family), tokens(2, LENGTH)
    with natq_reference.trained_by_brute_force(model):
        expected = _gradients(model, ids)
    found = _under(model, ids, chosen)
    control = _gradients(model, ids)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # rotary tables and norms are in float32 in places, hence the seventh digit
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7 * float(gradient.abs().max()), msg=name)
    changed = [name for name in found if not torch.allclose(found[name], control[name], rtol=1e-3)]
    assert len(changed) > 4  # what is compared is not the control's


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_under_either_solver(family: str) -> None:
    """Also those with a soft cap, a window or sinks, in float32; that the numbers are right is shown by rows."""
    model, ids = _trainable(family, torch.float32), tokens(2, LENGTH)
    exact = _under(model, ids, EXACT)
    close = _under(model, ids, CG.model_copy(update={"tolerance": 1e-5}))
    largest = max(float(gradient.abs().max()) for gradient in exact.values())
    for name, gradient in exact.items():
        assert gradient.isfinite().all()
        # an error of 1e-5 in every row and layer, and float32; the bias of keys has a gradient of 0 but for rounding
        torch.testing.assert_close(close[name], gradient, rtol=1e-3, atol=1e-4 * largest, msg=name)


def test_in_the_last_layer_all_gradients_but_the_querys_are_the_controls_bit_for_bit() -> None:
    model, ids = _trainable("llama", torch.float32), tokens(2, LENGTH)
    control, found = _gradients(model, ids), _under(model, ids, EXACT)
    last = f"layers.{LAYERS - 1}."
    above = [name for name in control if last in name or "model.norm" in name or "lm_head" in name]
    # the norm before the queries is fed by them, and all that lies below the layer too
    kept = [name for name in above if "q_proj" not in name and "input_layernorm" not in name]
    assert len(kept) >= 8
    assert all(torch.equal(found[name], control[name]) for name in kept)
    query = found[f"model.{last}self_attn.q_proj.weight"]
    assert not torch.allclose(query, control[f"model.{last}self_attn.q_proj.weight"])


def test_micro_batches_add_up_to_the_gradients_of_the_whole_batch() -> None:
    """Although g̃ is not linear in g: each row belongs to one sequence, and g̃ grows with the loss."""
    model, ids = _trainable("gpt2"), tokens(4, LENGTH)
    whole = _under(model, ids, EXACT)
    parts = [_under(model, part, EXACT) for part in ids.split(1)]
    for name, gradient in whole.items():
        torch.testing.assert_close(sum(part[name] for part in parts) / 4, gradient, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(
    ("chosen", "precision"),
    [(EXACT, "float32"), (Natq(), "bfloat16"), (Natq(iterations=6, fallback=False), "float32")],
    ids=["exact", "cg in bfloat16", "cg without fallback"],
)
def test_three_hundred_steps_stay_finite_and_learn(chosen: Natq, precision: str) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = transformers.GPT2LMHeadModel(config)
    seam.attach(model)
    installed = install(model, [chosen])
    # a large learning rate, so that rows become sharp
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(300):
        half = torch.randint(2, 32, (4, 8), generator=generator)
        ids = torch.cat([half, half], 1)  # the second half can be copied
        with (
            seam.observing(model, query_gradient=installed.query_gradient),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"),
        ):
            loss = _loss(model, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert sum(losses[-20:]) < sum(losses[:20])
    assert all(torch.tensor(value).isfinite() for _, _, value in installed.log())


def _log_of(natq_: Natq, seeds: list[int], *, length: int = 30) -> tuple[list[tuple[str, int | None, float]], list]:
    """The log of some backward passes of a layer, and their reports."""
    log, reports = variant.SolverLog(), []
    for seed in seeds:
        inputs = detached(attention_inputs(length=length, d=8, seed=seed))
        gradient = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        gradient[0, :, 4:6] = 0
        solver = natq.Solver(natq_.solver, natq_.damping, natq_.tolerance, natq_.iterations, natq_.fallback)
        reports.append(natq.natural_gradient(inputs, gradient, solver)[1])
        log.add(inputs.layer, reports[-1])
    return log.rows(), reports


@pytest.mark.parametrize("fallback", [True, False])
def test_the_log_gathers_the_rows_of_all_passes_since_it_was_read(fallback: bool) -> None:
    chosen = Natq(tolerance=1e-4, iterations=7, fallback=fallback)
    rows, (first, second) = _log_of(chosen, [0, 1])
    assert {layer for _, layer, _ in rows} == {3}
    found = {metric: value for metric, _, value in rows}
    assert set(found) == {f"natq_{name}" for name in (
        "residual_median", "residual_max", "iterations", "fallback_share", "zero_rows"
    )}  # fmt: skip
    zero = 2 * 4 + 2 * 4  # row 0 in two sequences of four heads, and two rows of one sequence
    assert found["natq_zero_rows"] == zero
    rows_of_a_pass = 2 * 4 * 30 - zero
    unfinished = int(first.unfinished.sum() + second.unfinished.sum())
    assert unfinished > 0
    assert found["natq_fallback_share"] == pytest.approx(unfinished / (2 * rows_of_a_pass))
    iterations = int(first.iterations.sum() + second.iterations.sum())
    assert found["natq_iterations"] == pytest.approx(iterations / (2 * rows_of_a_pass))
    residual = torch.cat([report.residual[~report.zero] for report in (first, second)])
    assert found["natq_residual_max"] == float(residual.max())
    assert (found["natq_residual_max"] <= 1e-4) == fallback
    newest = second.residual[~second.zero]
    assert found["natq_residual_median"] == pytest.approx(float(newest.quantile(0.5)))


def test_a_log_that_was_read_is_empty_and_rows_without_anything_to_solve_give_no_residual() -> None:
    log = variant.SolverLog()
    assert log.rows() == []
    inputs = detached(attention_inputs())
    _, report = natq.natural_gradient(inputs, torch.zeros_like(inputs.query), natq.Solver("cg"))
    log.add(0, report)
    assert log.rows() == [("natq_zero_rows", 0, 2 * 4 * 13.0)]
    assert log.rows() == []


def test_the_variant_passes_all_it_has_on_to_the_solver(monkeypatch) -> None:
    seen: list[natq.Solver] = []
    monkeypatch.setattr(variant, "transform", lambda inputs, solver, report: seen.append(solver) or inputs.query)
    for chosen in (Natq(), Natq(solver="exact", damping=0.3, tolerance=0.2, iterations=5, fallback=False)):
        variant.query_gradient(chosen, variant.SolverLog())(attention_inputs())
        expected = natq.Solver("cg", chosen.damping, chosen.tolerance, chosen.iterations, chosen.fallback)
        assert seen.pop() == replace(expected, method=chosen.solver)
