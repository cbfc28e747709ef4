"""r and transfer sweeps against brute-force float64 autograd on tiny random models of each family."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.calibration import SWEEP_TABLE, TABLE, CalibrationParameters
from services.contracts.probes.common import QueryRange
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.attention import rows, score_gradients, seam
from workers.attention.inputs import LayerAttention
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.probes import calibration, calibration_sweeps
from workers.probes.calibration_sweeps import SequenceRows, choose
from workers.probes.measurement import Measurement

LENGTH = 13  # longer than the families' window
EVERY_QUERY = QueryRange(start=0, step=1)


def _measure(
    student, teacher, ids: Tensor, *, queries: QueryRange = EVERY_QUERY, first: int = 0, **parameters
) -> Measurement:
    sequences, length = ids.shape
    asked = CalibrationParameters(
        **{"sequences": first + sequences, "length": length, "batch": 2, "queries": queries} | parameters
    )
    student, teacher = (each if isinstance(each, LoadedModel) else loaded(each) for each in (student, teacher))
    return calibration.measure(student, asked, ids.numpy().astype(np.int32), first, OtherModels([lambda: teacher]))


def _norms(measurement: Measurement, sequences: int, queries: int) -> dict[str, np.ndarray]:
    found = measurement.rows[TABLE.name]
    return {n: found[n].reshape(LAYERS, HEADS, sequences, queries) for n in ("r", "hard_norm", "soft_norm")}


def _losses(recording: reference.Recording, teacher_logits: Tensor, ids: Tensor, position: int) -> list[Tensor]:
    """Hard and soft loss of the prediction at a position, by sequence; tokens beyond either vocabulary left out."""
    known = min(recording.logits.shape[-1], teacher_logits.shape[-1])
    logits, teacher = recording.logits[:, position, :known], teacher_logits[:, position, :known]
    hard = F.cross_entropy(logits, ids[:, position + 1], reduction="none")
    return [hard, F.cross_entropy(logits, teacher.softmax(-1), reduction="none")]


def _expected(student, teacher, ids: Tensor) -> tuple[np.ndarray, list[list[Tensor]]]:
    """Norms [loss, layer, head, sequence, query] and per layer and loss the gradients [sequence, head, query, key]:
    two backward passes for every prediction, through the untouched model."""
    recording = reference.record(student, ids)
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    scores = [layer.scores for layer in recording.layers]
    gradients = [[torch.zeros_like(each) for each in scores] for _ in range(2)]
    for position in range(ids.shape[1] - 1):
        for number, loss in enumerate(_losses(recording, teacher_logits, ids, position)):
            found = torch.autograd.grad(loss.sum(), scores, retain_graph=True)
            for kept, gradient in zip(gradients[number], found, strict=True):
                kept[:, :, position] = gradient[:, :, position]
    norms = torch.stack([torch.stack([each.norm(dim=-1) for each in of_loss]) for of_loss in gradients])
    return norms.permute(0, 1, 3, 2, 4).detach().numpy(), gradients


@pytest.mark.parametrize("family", FAMILIES)
def test_every_norm_and_ratio_equals_brute_force_autograd(family: str) -> None:
    student, teacher, ids = tiny(family), tiny(family, seed=5), tokens(2, LENGTH)
    found = _norms(_measure(student, teacher, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = _expected(student, teacher, ids)
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
    found = _norms(_measure(student, teacher, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = _expected(tiny(family), tiny(family, seed=5), ids)
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
    measured = _measure(student, student, tokens(2, LENGTH))
    found = _norms(measured, 2, LENGTH)
    # two passes of the same model may add up their sums in another order
    assert np.nanmax(found["r"]) <= {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    assert (found["hard_norm"][..., 1:-1] > 0).all()
    assert measured.checks["teacher_divergence_nats"] == pytest.approx(0, abs=1e-6)


def test_losses_are_the_means_over_all_predictions() -> None:
    student, teacher, ids = tiny("gemma2"), tiny("gemma2", seed=5), tokens(3, LENGTH)
    checks = _measure(student, teacher, ids, sweeps_per_sequence=0).checks
    recording = reference.record(student, ids)
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    losses = [_losses(recording, teacher_logits, ids, position) for position in range(LENGTH - 1)]
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
    found = _norms(_measure(*sizes, ids, sweeps_per_sequence=0), 2, LENGTH)
    (hard, soft), _ = _expected(student, teacher, ids)
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
        _measure(student, teacher, torch.full((1, LENGTH), 55))
    assert failure.value.code == ErrorCode.TOKENS_OUT_OF_RANGE


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "opt"])
def test_losses_along_a_sweep_equal_whole_passes_with_the_same_offsets(family: str) -> None:
    student, teacher, ids = tiny(family), tiny(family, seed=5), tokens(1, LENGTH)
    measured = _measure(student, teacher, ids, sweeps_per_sequence=2, sweep_points=5, sweep_range=2.0)
    found = measured.rows[SWEEP_TABLE.name]
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    assert len(found["c"]) == 2 * 5
    for point in range(10):
        at = {name: values[point].item() for name, values in found.items()}
        place = (at["layer"], at["head"], at["query"])
        offsets = {(*place, at["first_key"]): at["c"], (*place, at["second_key"]): -at["c"]}
        recording = reference.record(student, ids, offsets)
        hard, soft = _losses(recording, teacher_logits, ids, at["query"])
        assert at["hard_loss_nats"] == pytest.approx(hard.item(), rel=1e-5)
        assert at["soft_loss_nats"] == pytest.approx(soft.item(), rel=1e-5)
        row = recording.layers[at["layer"]].pattern[0, at["head"], at["query"]]
        assert at["first_weight"] == pytest.approx(row[at["first_key"]].item(), rel=1e-5)
        assert at["second_weight"] == pytest.approx(row[at["second_key"]].item(), rel=1e-5)


def test_slopes_at_zero_are_the_differences_of_the_gradients() -> None:
    """Central differences of second order over ±0.003: the rest is about its square."""
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(1, LENGTH)
    measured = _measure(student, teacher, ids, sweeps_per_sequence=3, sweep_points=3, sweep_range=0.003)
    found = measured.rows[SWEEP_TABLE.name]
    _, gradients = _expected(student, teacher, ids)
    assert len(found["c"]) == 3 * 3
    for first in range(0, 9, 3):
        at = {name: values[first].item() for name, values in found.items()}
        for loss, name in enumerate(("hard_loss_nats", "soft_loss_nats")):
            row = gradients[loss][at["layer"]][0, at["head"], at["query"]]
            slope = (found[name][first + 2] - found[name][first]) / (found["c"][first + 2] - found["c"][first])
            assert slope == pytest.approx((row[at["first_key"]] - row[at["second_key"]]).item(), rel=1e-2, abs=1e-4)


def test_sweeps_take_the_two_most_attended_keys_of_low_rows_away_from_the_first_token() -> None:
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(3, LENGTH)
    measured = _measure(student, teacher, ids, sweeps_per_sequence=4, sweep_points=3)
    recording = reference.record(student, ids)
    found = measured.rows[SWEEP_TABLE.name]
    assert len(found["c"]) == 3 * 4 * 3
    assert found["chosen"].all()
    ratios = _norms(measured, 3, LENGTH)["r"]
    for point in range(len(found["c"])):
        at = {name: values[point].item() for name, values in found.items()}
        row = recording.layers[at["layer"]].pattern[at["sequence"], at["head"], at["query"]]
        assert row.topk(2).indices.tolist() == [at["first_key"], at["second_key"]]
        assert min(at["first_key"], at["second_key"]) > 0
        assert at["r"] == ratios[at["layer"], at["head"], at["sequence"], at["query"]]
    places = {(found["sequence"][p], found["query"][p]) for p in range(len(found["c"]))}
    assert len(places) == 3 * 4


def test_low_rows_are_chosen_by_slope_and_others_by_ratio() -> None:
    r = np.array([[[0.09, 0.02, 0.5, 0.3, 0.01, np.nan, 0.03]]])
    slope = np.array([[[0.2, 0.4, 9.0, 0.1, 0.7, 1.0, 0.0]]])
    first, second = np.array([[[3, 4, 2, 5, 0, 6, 1]]]), np.array([[[1, 2, 1, 3, 4, 2, -1]]])
    found = SequenceRows(
        range(5, 12), r, np.stack([np.ones_like(r)] * 2), np.stack([first, second]), np.stack([slope, slope])
    )
    # the fifth attends to key 0, the sixth is undefined, the seventh has one key
    assert [sweep.query for sweep in choose(found, 0, 9)] == [6, 5, 8, 7]
    assert [sweep.query for sweep in choose(found, 0, 1)] == [6]


def test_anchors_that_a_job_names_are_swept_besides() -> None:
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(2, LENGTH)
    named = {"layer": 1, "head": 2, "sequence": 8, "query": 10, "first_key": 0, "second_key": 10}
    measured = _measure(student, teacher, ids, first=7, sweeps_per_sequence=0, sweep_points=3, anchors=[named, named])
    found = measured.rows[SWEEP_TABLE.name]
    assert {name: found[name].tolist() for name in named} == {name: [value] * 3 for name, value in named.items()}
    assert found["c"].tolist() == [-3.0, 0.0, 3.0]
    assert not found["chosen"].any()
    assert (np.diff(found["first_weight"]) > 0).all() and (np.diff(found["second_weight"]) < 0).all()


def test_anchors_of_a_head_that_the_model_lacks_are_refused() -> None:
    named = {"layer": 1, "head": 7, "sequence": 0, "query": 10, "first_key": 2, "second_key": 10}
    with pytest.raises(KeyholeError, match="no layer 1, head 7"):
        _measure(tiny("llama"), tiny("llama", seed=5), tokens(1, LENGTH), anchors=[named])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sweep_points": 4}, "odd"),
        ({"anchors": [{"first_key": 40}]}, "key 40 lies behind query 36"),
        ({"anchors": [{"first_key": 5}]}, "both 5"),
        ({"anchors": [{"sequence": 2}]}, "sequences 0 to 1"),
        ({"anchors": [{"query": 37}]}, "query 37, which is not measured"),
        ({"anchors": [{"query": 63}], "queries": {"start": 63}}, "predicts nothing"),
    ],
)
def test_sweeps_that_cannot_be_made_are_refused_at_submission(wrong: dict, said: str) -> None:
    whole = {"layer": 0, "head": 0, "sequence": 0, "query": 36, "first_key": 3, "second_key": 5}
    if "anchors" in wrong:
        wrong = wrong | {"anchors": [whole | anchors for anchors in wrong["anchors"]]}
    with pytest.raises(ValidationError, match=said):
        CalibrationParameters.model_validate({"sequences": 2, "length": 64} | wrong)


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    student, teacher = (tiny("llama", seed=seed, dtype=torch.float32) for seed in (0, 5))
    measured = _measure(student, teacher, tokens(2, LENGTH), first=7, queries=QueryRange(start=2, step=3))
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "float8": np.float64, "bool": np.bool_}
    for table, key in ((TABLE, 4), (SWEEP_TABLE, 7)):
        columns = measured.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
        keys = list(zip(*(values.tolist() for values in list(columns.values())[:key]), strict=True))
        assert keys == sorted(set(keys))
    assert set(measured.rows[TABLE.name]["sequence"]) == set(measured.rows[SWEEP_TABLE.name]["sequence"]) == {7, 8}


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_results_do_not_depend_on_blocks_or_batches(family: str, monkeypatch) -> None:
    student, teacher, ids = loaded(tiny(family)), loaded(tiny(family, seed=5)), tokens(3, LENGTH)
    whole = _measure(student, teacher, ids, batch=3)
    monkeypatch.setattr(rows, "CPU_BLOCK", 1)
    parts = _measure(student, teacher, ids, batch=1)
    for table in (TABLE.name, SWEEP_TABLE.name):
        for name, values in whole.rows[table].items():
            np.testing.assert_allclose(parts.rows[table][name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "gpt_oss", "opt"])
def test_self_checks_hold_and_are_stored(family: str, dtype: torch.dtype) -> None:
    student, teacher = (tiny(family, seed=seed, dtype=dtype) for seed in (0, 5))
    checks = _measure(student, teacher, tokens(2, LENGTH)).checks
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
        _measure(student, teacher, tokens(2, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_without_sweeps_every_sixteenth_sequence_is_checked() -> None:
    student, teacher, ids = loaded(tiny("llama")), loaded(tiny("llama", seed=5)), tokens(1, LENGTH)
    for first, checked in ((0, True), (1, False), (16, True)):
        measured = _measure(student, teacher, ids, first=first, sweeps_per_sequence=0)
        assert ("max_slope_residual" in measured.checks) == checked
        assert len(measured.rows[SWEEP_TABLE.name]["c"]) == 0


def test_a_loss_that_is_not_a_number_fails_the_shard() -> None:
    student, teacher = (loaded(tiny("llama", dtype=torch.float32)) for _ in range(2))
    teacher.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(KeyholeError, match="soft loss is nan") as failure:
        _measure(student, teacher, tokens(1, LENGTH), sweeps_per_sequence=0, first=1)
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
    _measure(student, teacher, tokens(1, 40), sweeps_per_sequence=2, sweep_points=3)
    assert calls == {"student": [40, 40 + 2 * 3 + 4], "teacher": [40]}


def test_no_tensor_is_as_large_as_one_matrix_of_scores(monkeypatch) -> None:
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    length = 512
    student, teacher = (loaded(tiny("llama", seed=seed, dtype=torch.float32)) for seed in (0, 5))
    with _LargestTensor() as watched:
        _measure(student, teacher, tokens(1, length), queries=QueryRange(start=0, step=8))
    assert watched.largest <= 64 * (length + 32)
