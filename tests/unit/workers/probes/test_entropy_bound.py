"""Every column against brute force in float64 on tiny random models of each family, and the claims of the bound."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import QueryRange
from services.contracts.probes.entropy_bound import OBSTACLE_BITS, TABLE, EntropyBoundParameters
from tests.unit.workers import reference, reference_entropy
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from tests.unit.workers.models.test_architectures import small
from tests.unit.workers.probes.test_gradient_scale import LargestTensor
from workers.attention import rows, score_bound, seam
from workers.attention.entropy_bound import of_block
from workers.attention.inputs import LayerAttention
from workers.attention.projections import projections
from workers.probes import entropy_bound, passes
from workers.probes.measurement import Measurement

LENGTH = 23
EVERY_QUERY = QueryRange(start=0, step=1)
WITHOUT_ROTARY = ("gpt2", "gpt2-inverse-layer", "opt")


def _measure(model: PreTrainedModel, ids: torch.Tensor, **options: Any) -> Measurement:
    sequences, length = ids.shape
    given: dict[str, Any] = {"queries": EVERY_QUERY, "batch": 2} | options
    parameters = EntropyBoundParameters(sequences=sequences, length=length, **given)
    return passes.measure(entropy_bound.PROBE, loaded(model), parameters, ids.numpy().astype(np.int32), 0)


def _columns(measurement: Measurement, sequences: int) -> dict[str, np.ndarray]:
    found = measurement.rows[TABLE.name]
    return {name: values.reshape(LAYERS, HEADS, sequences) for name, values in found.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_statistic_equals_brute_force(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids), 2)
    expected = reference_entropy.statistics(reference.record(model, ids), range(LENGTH), range(LENGTH))
    for name, values in expected.items():
        # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
        np.testing.assert_allclose(measured[name], values, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_queries_and_ranked_rows_are_those_asked_for(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids, queries=QueryRange(start=2, stop=20, step=2), rank_rows=4), 2)
    expected = reference_entropy.statistics(reference.record(model, ids), range(2, 20, 2), range(2, 20, 6))
    for name, values in expected.items():
        np.testing.assert_allclose(measured[name], values, rtol=2e-5, atol=2e-6, err_msg=name)
    assert (measured["rank_rows"] == 3).all()  # every third of nine queries: every second would be five


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_statistics_in_float32_keep_three_digits(family: str) -> None:
    ids = tokens(2, LENGTH)
    measured = _columns(_measure(tiny(family, dtype=torch.float32), ids), 2)
    expected = reference_entropy.statistics(reference.record(tiny(family), ids), range(LENGTH), range(LENGTH))
    for name, values in expected.items():
        np.testing.assert_allclose(measured[name], values, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_rows_of_a_bfloat16_model_are_measured_with_float32_accuracy(family: str) -> None:
    """Given the model's own queries and keys: what bfloat16 does to the model is another matter."""
    for attention in _inputs(tiny(family, dtype=torch.bfloat16), tokens(2, LENGTH)):
        names = ("query", "key", "value", "sinks", "output")
        exact = {name: None if (had := getattr(attention, name)) is None else had.double() for name in names}
        found, expected = (of_block(each, range(LENGTH)) for each in (attention, replace(attention, **exact)))
        for name in ("weights", "share", "entropy_nats", "sigma"):
            one, other = getattr(found, name), getattr(expected, name)
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("block", [1, 3000, 10**6])
def test_results_do_not_depend_on_the_size_of_blocks(family: str, block: int, monkeypatch) -> None:
    model, ids = tiny(family), tokens(3, LENGTH)
    whole = _columns(_measure(model, ids, rank_rows=8), 3)
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    for name, values in _columns(_measure(model, ids, rank_rows=8, batch=3), 3).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-5, atol=1e-9, err_msg=name)


def test_rows_are_sorted_and_typed_as_the_table_says() -> None:
    ids = tokens(2, LENGTH).numpy().astype(np.int32)
    parameters = EntropyBoundParameters(sequences=9, length=LENGTH, queries=EVERY_QUERY)
    measured = passes.measure(entropy_bound.PROBE, loaded(tiny("llama", dtype=torch.float32)), parameters, ids, 7)
    columns = measured.rows[TABLE.name]
    assert ["job_id", *columns] == [column.name for column in TABLE.columns]
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "bool": np.bool_}
    assert all(columns[column.name].dtype == types[column.type] for column in TABLE.columns[1:])
    keys = list(zip(*(columns[name].tolist() for name in ("layer", "head", "sequence")), strict=True))
    assert keys == sorted({(x, y, z) for x in range(LAYERS) for y in range(HEADS) for z in (7, 8)})


def _inputs(model: PreTrainedModel, ids: torch.Tensor) -> list[LayerAttention]:
    class Keep:
        def __init__(self) -> None:
            self.seen: list[LayerAttention] = []

        def forward(self, attention: LayerAttention) -> None:
            self.seen.append(attention)

        def backward(self, attention: LayerAttention, delta: torch.Tensor) -> None: ...

    keep = Keep()
    seam.attach(model)
    with torch.no_grad(), seam.observing(model, [keep], hidden=True):
        model(ids, use_cache=False)
    return keep.seen


@pytest.mark.parametrize("family", FAMILIES)
def test_both_factors_are_those_of_singular_value_decompositions(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids), 2)
    for attention in _inputs(model, ids):
        found = projections(attention.module, HEADS, attention.key.shape[1])
        assert found.query is not None and found.key is not None and attention.hidden is not None
        inputs = [np.linalg.norm(x.double().numpy(), 2) ** 2 for x in attention.hidden]
        for head in range(HEADS):
            shared = head // (HEADS // attention.key.shape[1])
            product = found.key.weight[shared].double() @ found.query.weight[head].double().T  # d_model × d_model
            norm = np.linalg.norm(product.numpy(), 2)
            np.testing.assert_allclose(measured["weight_norm"][attention.layer, head], norm, rtol=1e-6)
            np.testing.assert_allclose(measured["input_norm"][attention.layer, head], inputs, rtol=1e-6)
            np.testing.assert_allclose(measured["scaling"][attention.layer, head], attention.scaling, rtol=1e-6)


def _quiet(family: str) -> PreTrainedModel:
    """A model whose queries and keys are small enough for weights and inputs to say something."""
    model = tiny(family)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("c_attn", "q_proj", "k_proj")):
            parameter.data = parameter.data * 0.1
    return model


@pytest.mark.parametrize("family", WITHOUT_ROTARY)
def test_weights_and_inputs_bound_every_row_of_models_without_rotary_embedding(family: str) -> None:
    model, ids = _quiet(family), tokens(2, LENGTH)
    measurement = _measure(model, ids)
    measured = _columns(measurement, 2)
    assert (measured["obstacles"] == 0).all() and measured["biased"].all()
    # the scores' own norms, from the patterns alone
    sigma = reference_entropy.statistics(reference.record(model, ids), range(LENGTH), range(LENGTH))["sigma_max"]
    assert (measured["sigma_product"] >= sigma).all()
    assert 10 ** measured["log10_product_bound"].max() > 0.1  # it says something
    assert (10.0 ** measured["log10_product_bound"] <= 10.0 ** measured["log10_bound"] + 1e-6).all()
    assert measurement.checks["max_sigma_excess"] == 0
    assert 0 <= measurement.checks["max_projection_residual"] <= 1e-5


@pytest.mark.parametrize("family", WITHOUT_ROTARY)
def test_the_product_with_biases_is_that_of_the_extended_matrices(family: str) -> None:
    model, ids = _quiet(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids), 2)
    for attention in _inputs(model, ids):
        found = projections(attention.module, HEADS, HEADS)
        assert found.query is not None and found.key is not None and attention.hidden is not None
        assert found.query.bias is not None
        x = np.concatenate([attention.hidden.double().numpy(), np.ones((2, LENGTH, 1))], -1)
        for head, sequence in np.ndindex(HEADS, 2):
            query = np.concatenate([found.query.weight[head].numpy(), found.query.bias[head, None].numpy()])
            norm = np.linalg.norm(found.key.weight[head].numpy() @ query.T, 2)
            sigma = attention.scaling * norm * np.linalg.norm(x[sequence], 2) ** 2
            np.testing.assert_allclose(measured["sigma_product"][attention.layer, head, sequence], sigma, rtol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "steps"),
    [
        ("llama", ["rotary"]),
        ("qwen3", ["norm", "rotary"]),
        ("gpt_bigcode", []),
        ("deepseek_v3", ["no matrices"]),
    ],
)
def test_obstacles_to_the_product_are_named(model_type: str, steps: list[str]) -> None:
    measured = _measure(small(model_type), tokens(1, LENGTH)).rows[TABLE.name]
    assert set(measured["obstacles"]) == {sum(OBSTACLE_BITS[step] for step in steps)}
    undefined = np.isnan(measured["sigma_product"])
    assert undefined.all() if steps else not undefined.any()
    assert (np.isnan(measured["log10_product_bound"]) == undefined).all()
    assert np.isnan(measured["weight_norm"]).all() == (steps == ["no matrices"])


def test_layers_without_rotary_embedding_are_bounded_in_a_model_that_has_one() -> None:
    model = tiny("llama")
    model.config.model_type = "smollm3"  # type: ignore[misc]  # of the class; whose attention says by layer whether it turns queries and keys
    for layer, each in enumerate(_inputs(model, tokens(1, 4))):
        each.module.use_rope = layer != 1  # type: ignore[assignment]  # as SmolLM3's attention has it
    with pytest.raises(KeyholeError, match="rebuilt from the layer's input") as failure:
        _measure(model, tokens(1, LENGTH))  # layer 1 does turn them: the claim is found out
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_self_checks_pass_and_are_stored(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(2, LENGTH)).checks
    assert set(checks) == {f"max_{name}" for name in entropy_bound.CHECKS}
    for name, (allowed, _) in entropy_bound.CHECKS.items():
        assert checks[f"max_{name}"] <= allowed[dtype] / 3
    assert checks["max_output_residual"] > 0


@pytest.mark.parametrize("wrong", [{"scaling": 0.5}, {"softcap": 1.0}, {"sinks": torch.ones(HEADS).double()}])
def test_a_pattern_that_is_not_the_models_gives_other_outputs(wrong: dict[str, Any]) -> None:
    attention = _inputs(tiny("llama"), tokens(1, LENGTH))[1]
    for given, least in ((attention, 0.0), (replace(attention, **wrong), 3e-2)):
        block = of_block(given, range(LENGTH))
        residual = entropy_bound.output_residual(given, range(LENGTH), block.weights * block.share[..., None])
        assert (residual.max() > least) and (least > 0 or residual.max() < 1e-5)


@pytest.mark.parametrize("check", entropy_bound.CHECKS)
def test_a_departure_beyond_its_tolerance_fails_the_shard(check: str, monkeypatch) -> None:
    monkeypatch.setitem(entropy_bound.CHECKS, check, ({torch.float64: -1.0}, "{value} is too much"))
    with pytest.raises(KeyholeError, match="too much") as failure:
        _measure(tiny("gpt2"), tokens(1, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_norms_of_weights_are_computed_once_and_again_when_weights_change(monkeypatch) -> None:
    calls: list[int] = []
    whole = score_bound.bilinear_norm
    monkeypatch.setattr(score_bound, "bilinear_norm", lambda *weights: calls.append(1) or whole(*weights))
    model, ids = tiny("llama"), tokens(1, LENGTH)
    before = _columns(_measure(model, ids), 1)["weight_norm"]
    _measure(model, ids)
    assert len(calls) == LAYERS
    model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    after = _columns(_measure(model, ids), 1)["weight_norm"]
    np.testing.assert_allclose(after[0], 2 * before[0], rtol=1e-6)
    np.testing.assert_array_equal(after[1], before[1])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss"])
def test_no_tensor_is_as_large_as_one_matrix_of_scores(family: str, monkeypatch) -> None:
    """All that is made at once is a block of rows, the ranked rows of one head, or one of the model's own tensors."""
    length = 128 if family == "gpt2" else 512
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    ready, ids = loaded(tiny(family, dtype=torch.float32)), tokens(2, length).numpy()
    parameters = EntropyBoundParameters(sequences=2, length=length, queries=QueryRange(start=0, step=2), rank_rows=40)
    with LargestTensor() as watched:
        passes.measure(entropy_bound.PROBE, ready, parameters, ids, 0)
    # gpt_oss: [1, 1, T, T] booleans of the window, and the four experts' [T, 4, 96]
    assert watched.elements <= {"llama": 64, "gpt2": 128, "gpt_oss": 400}[family] * length
