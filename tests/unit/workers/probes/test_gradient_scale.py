"""Every D_a and D_c against brute-force float64 autograd on tiny random models of each family."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit, QueryRange
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.attention import advantage, rows, seam
from workers.attention.inputs import LayerAttention
from workers.probes import gradient_scale, passes
from workers.probes.measurement import Measurement

LENGTH = 23
EVERY_QUERY = QueryRange(start=0, step=1)  # rows of every length, even and odd


def _measure(
    model, ids, *, credit: Credit = "sequence", batch: int = 2, queries: QueryRange = EVERY_QUERY
) -> Measurement:
    sequences, length = ids.shape
    parameters = GradientScaleParameters(
        sequences=sequences, length=length, batch=batch, credit=credit, queries=queries
    )
    return passes.measure(gradient_scale.PROBE, loaded(model), parameters, ids.numpy().astype(np.int32), 0)


def _columns(measurement: Measurement, sequences: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    found = measurement.rows[TABLE.name]
    shape = (LAYERS, HEADS, sequences, queries)
    return found["log10_d_a"].reshape(shape), found["log10_d_c"].reshape(shape)


def _expected(model, ids, credit: Credit, queries: range) -> tuple[np.ndarray, np.ndarray]:
    recording = reference.record(model, ids)
    by_credit = {"sequence": reference.sequence_credit, "own_token": reference.own_token_credit}
    return reference.spreads(recording, by_credit[credit](recording, ids), queries)


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_spread_equals_brute_force_autograd(family: str, credit: Credit) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids, credit=credit), 2, LENGTH)
    for found, expected in zip(measured, _expected(model, ids, credit, range(LENGTH)), strict=True):
        # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_spreads_in_float32_keep_three_decimals(family: str, credit: Credit) -> None:
    model, ids = tiny(family, dtype=torch.float32), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids, credit=credit), 2, LENGTH)
    for found, expected in zip(measured, _expected(tiny(family), ids, credit, range(LENGTH)), strict=True):
        # |A| of a row whose values nearly agree is a small difference: it keeps fewer digits (measured: 4e-5)
        np.testing.assert_allclose(found, expected, atol=5e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_a_bfloat16_model_is_measured_with_float32_accuracy(family: str) -> None:
    """Given the model's own bfloat16 queries, keys, values and δ, rows are as float64 gives them.

    The tolerance of 1e-3 in log10 is that of the float32 products. What bfloat16 does to the model itself is another
    matter, and the next test's.
    """
    model, ids, caught = tiny(family, dtype=torch.bfloat16), tokens(2, LENGTH), []

    class Catcher:
        def forward(self, attention: LayerAttention) -> None: ...

        def backward(self, attention: LayerAttention, delta: torch.Tensor) -> None:
            caught.append((attention, delta))

    seam.attach(model)
    with seam.observing(model, [Catcher()]):
        logits = model(ids, use_cache=False).logits
        torch.autograd.backward(logits.float().logsumexp(-1).sum())
    assert len(caught) == LAYERS
    for attention, delta in caught:
        found = gradient_scale.spreads_of_block(attention, range(LENGTH), delta.transpose(1, 2))
        names = ("query", "key", "value", "sinks", "output")
        exact = {name: None if (had := getattr(attention, name)) is None else had.double() for name in names}
        expected = gradient_scale.spreads_of_block(
            replace(attention, **exact), range(LENGTH), delta.double().transpose(1, 2)
        )
        for one, other in zip(found[:2], expected[:2], strict=True):
            torch.testing.assert_close(one.double(), other, atol=1e-3, rtol=0, equal_nan=True)


def test_spreads_of_a_bfloat16_model_stay_near_those_in_float64() -> None:
    """bfloat16 has under three digits: half of the rows stay within 0.02, nine in ten within 0.1 of log10 D (measured:
    0.008 and 0.029 for D_a, 0.009 and 0.035 for D_c)."""
    ids = tokens(4, LENGTH)
    measured = _columns(_measure(tiny("llama", dtype=torch.bfloat16), ids), 4, LENGTH)
    expected = _expected(tiny("llama"), ids, "sequence", range(LENGTH))
    for found, exact in zip(measured, expected, strict=True):
        error = np.abs(found - exact)[np.isfinite(exact)]
        assert np.median(error) < 0.02
        assert np.quantile(error, 0.9) < 0.1


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("block", [1, 1000])
def test_results_do_not_depend_on_the_size_of_blocks(family: str, block: int, monkeypatch) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    whole = _columns(_measure(model, ids), 2, LENGTH)
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    for found, expected in zip(_columns(_measure(model, ids), 2, LENGTH), whole, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
def test_sequences_of_a_batch_do_not_act_on_each_other(credit: Credit) -> None:
    model, ids = tiny("llama"), tokens(5, LENGTH)
    together = _columns(_measure(model, ids, batch=3, credit=credit), 5, LENGTH)
    alone = _columns(_measure(model, ids, batch=1, credit=credit), 5, LENGTH)
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_queries_are_chosen_by_start_stop_and_step() -> None:
    model, ids = tiny("mistral"), tokens(2, LENGTH)
    every = _columns(_measure(model, ids), 2, LENGTH)
    some = _columns(_measure(model, ids, queries=QueryRange(start=4, stop=18, step=3)), 2, 5)
    for found, expected in zip(some, every, strict=True):
        np.testing.assert_allclose(found, expected[..., 4:18:3], atol=1e-5)


def test_rows_are_sorted_and_typed_as_the_table_says() -> None:
    parameters = GradientScaleParameters(sequences=9, length=LENGTH, queries=QueryRange(start=2, step=5))
    ids = tokens(2, LENGTH).numpy().astype(np.int32)
    measured = passes.measure(gradient_scale.PROBE, loaded(tiny("llama", dtype=torch.float32)), parameters, ids, 7)
    columns = measured.rows[TABLE.name]
    assert ["job_id", *columns] == [column.name for column in TABLE.columns]
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    assert all(columns[column.name].dtype == types[column.type] for column in TABLE.columns[1:])
    keys = list(zip(*(columns[name] for name in ("layer", "head", "sequence", "query")), strict=True))
    product = itertools.product(range(LAYERS), range(HEADS), (7, 8), range(2, LENGTH, 5))
    assert keys == list(product)


def test_the_last_position_predicts_nothing_and_has_no_credit() -> None:
    _, log10_d_c = _columns(_measure(tiny("llama"), tokens(2, LENGTH)), 2, LENGTH)
    assert np.isnan(log10_d_c[..., LENGTH - 1]).all()
    assert np.isfinite(log10_d_c[..., 2 : LENGTH - 1]).all()


def test_own_token_credit_of_a_query_ignores_all_later_tokens() -> None:
    model, ids = tiny("llama"), tokens(1, LENGTH)
    other = ids.clone()
    other[0, 15:] = tokens(1, LENGTH, seed=9)[0, 15:]
    found = _columns(_measure(model, ids, credit="own_token"), 1, LENGTH)
    changed = _columns(_measure(model, other, credit="own_token"), 1, LENGTH)
    for one, two in zip(found, changed, strict=True):
        # the query at 14 predicts token 15, which changed; those before it see and predict the same
        np.testing.assert_allclose(one[..., :14], two[..., :14], atol=1e-5)


def test_loss_is_the_mean_cross_entropy() -> None:
    model, ids = tiny("gemma2"), tokens(3, LENGTH)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert _measure(model, ids).checks["loss_nats"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_advantages_weighted_by_attention_add_up_to_zero(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(2, LENGTH)).checks
    assert 0 <= checks["max_identity_residual"] <= advantage.IDENTITY_TOLERANCE[dtype]


@pytest.mark.parametrize("wrong", [{"scaling": 0.5}, {"softcap": 1.0}, {"sinks": torch.ones(HEADS).double()}])
def test_rows_that_are_not_the_models_break_the_identity(wrong: dict) -> None:
    class Check:
        residual = 0.0

        def forward(self, attention: LayerAttention) -> None: ...

        def backward(self, attention: LayerAttention, delta: torch.Tensor) -> None:
            *_, residual = gradient_scale.spreads_of_block(
                replace(attention, **wrong), range(LENGTH), delta.transpose(1, 2)
            )
            self.residual = max(self.residual, float(residual.max()))

    model, check = tiny("llama"), Check()
    seam.attach(model)
    with seam.observing(model, [check]):
        torch.autograd.backward(model(tokens(1, LENGTH), use_cache=False).logits.logsumexp(-1).sum())
    assert check.residual > max(advantage.IDENTITY_TOLERANCE.values())


def test_a_departure_beyond_the_tolerance_fails_the_shard(monkeypatch) -> None:
    monkeypatch.setitem(advantage.IDENTITY_TOLERANCE, torch.float32, 1e-12)
    with pytest.raises(KeyholeError) as failure:
        _measure(tiny("llama", dtype=torch.float32), tokens(1, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_loss_that_is_not_a_number_fails_the_shard() -> None:
    ready = loaded(tiny("llama", dtype=torch.float32))
    ready.model.lm_head.weight.fill_(torch.nan)
    parameters = GradientScaleParameters(sequences=1, length=LENGTH, queries=EVERY_QUERY)
    with pytest.raises(KeyholeError, match="loss") as failure:
        passes.measure(gradient_scale.PROBE, ready, parameters, tokens(1, LENGTH).numpy(), 0)
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation made, on the way forward or back."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple) else (result,)
        sizes = [tensor.untyped_storage().nbytes() // 4 for tensor in made if isinstance(tensor, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss"])
def test_no_tensor_is_as_large_as_one_matrix_of_scores(family: str, credit: Credit, monkeypatch) -> None:
    """All that is made at once is a block of rows, or one of the model's own tensors."""
    length = 128 if family == "gpt2" else 512
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    ready, ids = loaded(tiny(family, dtype=torch.float32)), tokens(2, length).numpy()
    queries = QueryRange(start=0, step=1 if family == "gpt2" else 8)
    parameters = GradientScaleParameters(sequences=2, length=length, queries=queries, credit=credit)
    with LargestTensor() as watched:
        passes.measure(gradient_scale.PROBE, ready, parameters, ids, 0)
    # gpt_oss: [1, 1, T, T] booleans of the window, and the four experts' [T, 4, 96]
    assert watched.elements <= {"llama": 64, "gpt2": 128, "gpt_oss": 400}[family] * length
