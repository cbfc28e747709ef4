"""Gradient norms and their ratio r against brute-force float64 autograd on tiny random models of each family."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.calibration import SWEEP_TABLE, TABLE
from services.contracts.probes.common import QueryRange
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, tiny, tokens
from tests.unit.workers.loaded import loaded
from tests.unit.workers.probes.calibration_pair import LENGTH, expected_norms, losses_at, measured, norms_of
from workers.attention import rows, score_gradients, seam
from workers.attention.inputs import LayerAttention
from workers.probes import calibration, calibration_sweeps


@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_and_ratio_equals_brute_force_autograd(family: str) -> None:
    student, teacher, ids = tiny(family), tiny(family, seed=5), tokens(2, LENGTH)
    found = norms_of(measured(student, teacher, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = expected_norms(student, teacher, ids)
    # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
    np.testing.assert_allclose(found["hard_norm"], hard, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(found["soft_norm"], soft, rtol=2e-5, atol=1e-7)
    defined = np.isfinite(found["r"])
    np.testing.assert_allclose(found["r"][defined], (soft / np.where(hard == 0, 1, hard))[defined], rtol=2e-4)
    # the last position predicts nothing; position 0 sees itself alone, and in gpt_oss a sink
    undefined = np.zeros_like(defined)
    undefined[..., -1] = True
    undefined[..., 0] = family != "gpt_oss"
    np.testing.assert_array_equal(~defined, undefined)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_ratios_in_float32_keep_three_digits(family: str) -> None:
    ids = tokens(2, LENGTH)
    student, teacher = (tiny(family, seed=seed, dtype=torch.float32) for seed in (0, 5))
    found = norms_of(measured(student, teacher, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = expected_norms(tiny(family), tiny(family, seed=5), ids)
    defined = np.isfinite(found["r"])
    np.testing.assert_allclose(found["r"][defined], (soft / np.where(hard == 0, 1, hard))[defined], rtol=1e-3)


def test_gradients_of_a_concentrated_row_keep_their_digits_in_float32() -> None:
    """One key with nearly all of the attention: its own gradient is minus the sum of the others, which are tiny."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 9, 8, generator=generator).double() for _ in range(3))
    key[:, :, 0] += 14 * query[:, :, 8] / query[:, :, 8].square().sum(-1, keepdim=True)
    delta = torch.randn(1, 2, 1, 8, generator=generator).double()
    scores = (query[:, :, 8:] @ key.transpose(-1, -2)).requires_grad_()
    output = scores.softmax(-1) @ value
    assert (scores.softmax(-1).amax(-1) > 0.9999).all()
    (expected,) = torch.autograd.grad((output * delta).sum(), scores)
    all_outputs = output.detach().expand(1, 2, 9, 8).transpose(1, 2)
    found = score_gradients.of_block(
        LayerAttention(
            0,
            query.float(),
            key.float(),
            value.float(),
            1.0,
            None,
            None,
            None,
            all_outputs.float(),
            torch.nn.Identity(),
            None,
        ),
        range(8, 9),
        delta.float(),
    )
    np.testing.assert_allclose(found.gradient.norm(dim=-1), expected.norm(dim=-1), rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_model_that_is_its_own_teacher_has_no_soft_gradient(dtype: torch.dtype) -> None:
    student = loaded(tiny("llama", dtype=dtype))
    taken = measured(student, student, tokens(2, LENGTH))
    found = norms_of(taken, 2, LENGTH)
    # two passes of the same model may add up their sums in another order
    assert np.nanmax(found["r"]) <= {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    assert (found["hard_norm"][..., 1:-1] > 0).all()
    assert taken.checks["teacher_divergence_nats"] == pytest.approx(0, abs=1e-6)


def test_losses_are_the_means_over_all_predictions() -> None:
    student, teacher, ids = tiny("gemma2"), tiny("gemma2", seed=5), tokens(3, LENGTH)
    checks = measured(student, teacher, ids, sweeps_per_sequence=0).checks
    recording = reference.record(student, ids)
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    losses = [losses_at(recording, teacher_logits, ids, position) for position in range(LENGTH - 1)]
    hard, soft = (torch.stack(each).mean().item() for each in zip(*losses, strict=True))
    entropy = torch.distributions.Categorical(logits=teacher_logits[:, :-1]).entropy().mean().item()
    assert checks["loss_nats"] == pytest.approx(hard, rel=1e-5)
    assert checks["soft_loss_nats"] == pytest.approx(soft, rel=1e-5)
    assert checks["teacher_divergence_nats"] == pytest.approx(soft - entropy, rel=1e-4)


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_token_ids_that_one_model_lacks_are_left_out(padded: str) -> None:
    def model(seed: int, larger: bool):
        made = tiny("llama", seed=seed)
        if larger:
            generator = torch.Generator().manual_seed(0)
            made.resize_token_embeddings(70, mean_resizing=False)
            for weight in (made.get_input_embeddings().weight, made.get_output_embeddings().weight):
                weight.requires_grad_(False)[61:] = torch.randn(9, 32, generator=generator)
        return made

    ids = tokens(2, LENGTH)
    student, teacher = model(0, padded == "student"), model(5, padded == "teacher")
    sizes = [replace(each, tokenizer=_Tokenizer()) for each in (loaded(student), loaded(teacher))]
    found = norms_of(measured(*sizes, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = expected_norms(student, teacher, ids)
    np.testing.assert_allclose(found["hard_norm"], hard, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(found["soft_norm"], soft, rtol=2e-5, atol=1e-7)


class _Tokenizer:
    """What is asked of a tokenizer here: 61 tokens, and merges."""

    def get_vocab(self) -> dict[str, int]:
        return {f"t{number}": number for number in range(61)}

    @property
    def backend_tokenizer(self) -> "_Tokenizer":
        return self

    def to_str(self) -> str:
        return '{"model": {"merges": [["a", "b"]]}}'


def test_a_token_that_the_teacher_lacks_is_refused() -> None:
    student, teacher = (replace(loaded(tiny("llama")), tokenizer=_Tokenizer()) for _ in range(2))
    teacher.model.resize_token_embeddings(50, mean_resizing=False)
    teacher = replace(teacher, architecture=replace(teacher.architecture, vocabulary_size=50))
    with pytest.raises(KeyholeError, match="tokens 0 to 49 in common") as failure:
        measured(student, teacher, torch.full((1, LENGTH), 55))
    assert failure.value.code == ErrorCode.TOKENS_OUT_OF_RANGE


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    student, teacher = (tiny("llama", seed=seed, dtype=torch.float32) for seed in (0, 5))
    taken = measured(student, teacher, tokens(2, LENGTH), first=7, queries=QueryRange(start=2, step=3))
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "float8": np.float64, "bool": np.bool_}
    for table, key in ((TABLE, 4), (SWEEP_TABLE, 7)):
        columns = taken.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
        keys = list(zip(*(values.tolist() for values in list(columns.values())[:key]), strict=True))
        assert keys == sorted(set(keys))
    assert set(taken.rows[TABLE.name]["sequence"]) == set(taken.rows[SWEEP_TABLE.name]["sequence"]) == {7, 8}


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_results_do_not_depend_on_blocks_or_batches(family: str, monkeypatch) -> None:
    student, teacher, ids = loaded(tiny(family)), loaded(tiny(family, seed=5)), tokens(3, LENGTH)
    whole = measured(student, teacher, ids, batch=3)
    monkeypatch.setattr(rows, "CPU_BLOCK", 1)
    parts = measured(student, teacher, ids, batch=1)
    for table in (TABLE.name, SWEEP_TABLE.name):
        for name, values in whole.rows[table].items():
            np.testing.assert_allclose(parts.rows[table][name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "gpt_oss", "opt"])
def test_self_checks_hold_and_are_stored(family: str, dtype: torch.dtype) -> None:
    student, teacher = (tiny(family, seed=seed, dtype=dtype) for seed in (0, 5))
    checks = measured(student, teacher, tokens(2, LENGTH)).checks
    assert checks["max_identity_residual"] > 0
    assert checks["max_sweep_loss_difference"] <= calibration_sweeps.LOSS_TOLERANCE[dtype]
    assert ("max_slope_residual" in checks) == (dtype != torch.bfloat16)
    assert checks.get("max_slope_residual", 0) <= calibration_sweeps.SLOPE_TOLERANCE


@pytest.mark.parametrize("wrong", ["credit of the sequence", "gradient of the wrong head", "soft and hard swapped"])
def test_gradients_that_are_not_those_of_the_predictions_are_found_out(wrong: str, monkeypatch) -> None:
    if wrong == "credit of the sequence":  # keys and values carry gradients of later predictions too
        plain = seam.observing
        monkeypatch.setattr(
            calibration.seam, "observing", lambda model, *given, credit="", **named: plain(model, *given, **named)
        )
    elif wrong == "gradient of the wrong head":
        of_block = score_gradients.of_block

        def shifted(attention, positions, delta):
            found = of_block(attention, positions, delta)
            return replace(found, gradient=found.gradient.roll(1, 1))

        monkeypatch.setattr(score_gradients, "of_block", shifted)
    else:
        monkeypatch.setattr(calibration, "HARD", 1)
        monkeypatch.setattr(calibration, "SOFT", 0)
    student, teacher = (tiny("llama", seed=seed, dtype=torch.float32) for seed in (0, 5))
    with pytest.raises(KeyholeError, match="depart by") as failure:
        measured(student, teacher, tokens(2, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_without_sweeps_every_sixteenth_sequence_is_checked() -> None:
    student, teacher, ids = loaded(tiny("llama")), loaded(tiny("llama", seed=5)), tokens(1, LENGTH)
    for first, checked in ((0, True), (1, False), (16, True)):
        taken = measured(student, teacher, ids, first=first, sweeps_per_sequence=0)
        assert ("max_slope_residual" in taken.checks) == checked
        assert len(taken.rows[SWEEP_TABLE.name]["c"]) == 0


def test_a_loss_that_is_not_a_number_fails_the_shard() -> None:
    student, teacher = (loaded(tiny("llama", dtype=torch.float32)) for _ in range(2))
    teacher.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(KeyholeError, match="soft loss is nan") as failure:
        measured(student, teacher, tokens(1, LENGTH), sweeps_per_sequence=0, first=1)
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


class _LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation made, on the way forward or back."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple) else (result,)
        sizes = [tensor.untyped_storage().nbytes() // 4 for tensor in made if isinstance(tensor, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return result


def test_a_sequence_takes_two_forward_passes_of_the_student_whatever_its_queries() -> None:
    """One for both gradients and one for all sweeps; the teacher takes one."""
    student, teacher = (loaded(tiny("llama", seed=seed)) for seed in (0, 5))
    calls: dict[str, list[int]] = {"student": [], "teacher": []}
    for name, each in (("student", student), ("teacher", teacher)):
        each.model.register_forward_pre_hook(lambda module, given, name=name: calls[name].append(given[0].shape[1]))
    measured(student, teacher, tokens(1, 40), sweeps_per_sequence=2, sweep_points=3)
    assert calls == {"student": [40, 40 + 2 * 3 + 4], "teacher": [40]}


def test_no_tensor_is_as_large_as_one_matrix_of_scores(monkeypatch) -> None:
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    length = 512
    student, teacher = (loaded(tiny("llama", seed=seed, dtype=torch.float32)) for seed in (0, 5))
    with _LargestTensor() as watched:
        measured(student, teacher, tokens(1, length), queries=QueryRange(start=0, step=8))
    assert watched.largest <= 64 * (length + 32)
