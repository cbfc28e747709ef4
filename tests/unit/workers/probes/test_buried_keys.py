"""Coalitions against brute force in float64 on tiny random models of each family."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.buried_keys import (
    KEY_TABLE,
    PICK_TABLE,
    QUERY_TABLE,
    BuriedKeysParameters,
    SparseQueryRange,
)
from services.contracts.probes.common import Credit
from tests.unit.workers import coalitions, reference
from tests.unit.workers.families import FAMILIES, HEADS, VOCABULARY, tiny, tokens
from tests.unit.workers.loaded import loaded
from tests.unit.workers.probes.test_gradient_scale import LargestTensor
from workers.attention import advantage, coalition, rows, seam
from workers.attention.inputs import LayerAttention
from workers.probes import buried_keys, passes
from workers.probes.measurement import Measurement

LENGTH = 23
TOP_K, MIN_HEADS = 3, 2  # of four heads: both signs of a key can qualify
TABLES = (KEY_TABLE, PICK_TABLE, QUERY_TABLE)


def _different_tokens(sequences: int) -> torch.Tensor:
    """No token twice in a sequence: the values of a repeated one are equal in the first layer of some families."""
    generator = torch.Generator().manual_seed(3)
    return torch.stack([3 + torch.randperm(VOCABULARY - 3, generator=generator)[:LENGTH] for _ in range(sequences)])


def _measure(model, ids, first_sequence: int = 0, **options: Any) -> Measurement:
    sequences, length = ids.shape
    chosen = {"batch": 2, "queries": SparseQueryRange(start=0, step=1), "top_k": TOP_K, "min_heads": MIN_HEADS}
    parameters = BuriedKeysParameters(sequences=sequences, length=length, **(chosen | options))
    return passes.measure(buried_keys.PROBE, loaded(model), parameters, ids.numpy().astype(np.int32), first_sequence)


def _by(columns: Mapping[str, np.ndarray], key: str, figures: str) -> dict[tuple, tuple]:
    keys, values = ([columns[name].tolist() for name in names.split()] for names in (key, figures))
    found = dict(zip(zip(*keys, strict=True), zip(*values, strict=True), strict=True))
    assert len(found) == len(columns["layer"])
    return found


def _assert_equal(found: dict[tuple, tuple], expected: dict[tuple, tuple]) -> None:
    assert found.keys() == expected.keys()
    for key, figures in expected.items():
        # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model; advantages
        # are in units of their row's root mean square, and small ones are small differences
        assert found[key] == pytest.approx(figures, rel=2e-5, abs=2e-6), key


def _assert_same(found: Measurement, expected: Measurement, absolute: float = 0) -> None:
    for table in TABLES:
        for name, values in expected.rows[table.name].items():
            np.testing.assert_allclose(found.rows[table.name][name], values, rtol=1e-5, atol=absolute, err_msg=name)


@pytest.mark.parametrize(
    ("family", "credit"),
    [*((family, "sequence") for family in FAMILIES), ("llama", "own_token"), ("gpt_oss", "own_token")],
)
def test_coalitions_picks_and_abstentions_equal_brute_force(family: str, credit: Credit) -> None:
    model, ids = tiny(family), _different_tokens(2)
    found = _measure(model, ids, credit=credit).rows
    recording = reference.record(model, ids)
    by_credit = {"sequence": reference.sequence_credit, "own_token": reference.own_token_credit}
    deltas = by_credit[credit](recording, ids)
    expected = coalitions.coalitions(recording, deltas, range(LENGTH), TOP_K, MIN_HEADS)
    assert len(expected.keys) > 50
    figures = "heads attention_rank_smallest attention_rank_median attention_rank_largest largest_weight score"
    _assert_equal(_by(found["buried_key"], "layer sequence query key direction", figures), expected.keys)
    figures = "place advantage weight attention_rank agrees"
    _assert_equal(_by(found["buried_pick"], "layer head sequence query key", figures), expected.picks)
    figures = "qualifying most_heads best_score"
    _assert_equal(_by(found["buried_query"], "layer sequence query", figures), expected.queries)


def test_both_signs_of_a_key_qualify_where_enough_heads_stand_for_each() -> None:
    keys = _measure(tiny("llama"), _different_tokens(2)).rows["buried_key"]
    chosen = list(zip(*(keys[name].tolist() for name in ("layer", "sequence", "query", "key")), strict=True))
    assert len(set(chosen)) < len(chosen)


@pytest.mark.parametrize("block", [1, 1000])
@pytest.mark.parametrize("family", ["mistral", "gpt_oss"])
def test_results_do_not_depend_on_the_size_of_blocks(family: str, block: int, monkeypatch) -> None:
    model, ids = tiny(family), _different_tokens(2)
    whole = _measure(model, ids)
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    _assert_same(_measure(model, ids), whole, absolute=1e-9)


def test_sequences_of_a_batch_do_not_act_on_each_other() -> None:
    model, ids = tiny("llama"), _different_tokens(3)
    _assert_same(_measure(model, ids, batch=3), _measure(model, ids, batch=1), absolute=1e-9)


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    ids = _different_tokens(2)
    measured = _measure(tiny("llama"), ids, first_sequence=7, batch=1, queries=SparseQueryRange(start=4, step=5))
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32, "bool": np.bool_}
    for table in TABLES:
        columns = measured.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
        order = list(zip(*(columns[name].tolist() for name in table.key), strict=True))
        assert order == sorted(order)
        assert set(columns["sequence"].tolist()) == {7, 8}
        assert set(columns["query"].tolist()) <= set(range(4, LENGTH, 5))
    assert len(measured.rows["buried_query"]["query"]) == 2 * 2 * len(range(4, LENGTH, 5))


def test_only_the_keys_and_picks_that_were_asked_for_are_stored() -> None:
    model, ids = tiny("llama"), _different_tokens(2)
    whole, few = _measure(model, ids), _measure(model, ids, keep=1, min_attention_rank=6, picks="coalition")
    keys, picks = whole.rows["buried_key"], whole.rows["buried_pick"]
    taken: dict[tuple, int] = {}
    for index, rank in enumerate(keys["attention_rank_smallest"]):
        if rank >= 6:
            taken.setdefault(tuple(keys[name][index] for name in ("layer", "sequence", "query")), index)
    assert 0 < len(taken) < len(keys["key"])
    for name, values in few.rows["buried_key"].items():
        np.testing.assert_array_equal(values, keys[name][list(taken.values())])
    wanted = [where in taken for where in zip(picks["layer"], picks["sequence"], picks["query"], strict=True)]
    for name, values in few.rows["buried_pick"].items():
        np.testing.assert_array_equal(values, picks[name][wanted])
    np.testing.assert_array_equal(few.rows["buried_query"]["qualifying"], whole.rows["buried_query"]["qualifying"])
    none = _measure(model, ids, picks="none").rows
    assert (len(none["buried_pick"]["key"]), len(none["buried_key"]["key"])) == (0, len(keys["key"]))


def test_the_last_position_has_no_advantage_and_abstains() -> None:
    found = _measure(tiny("llama"), _different_tokens(2), min_heads=1).rows
    assert LENGTH - 1 not in found["buried_pick"]["query"]
    last = found["buried_query"]["query"] == LENGTH - 1
    assert last.sum() == 4
    assert not found["buried_query"]["most_heads"][last].any()
    assert (found["buried_query"]["qualifying"][~last & (found["buried_query"]["query"] > 0)] > 0).all()


def test_more_heads_than_the_model_has_are_refused() -> None:
    assert _measure(tiny("llama"), _different_tokens(1), min_heads=HEADS).rows["buried_query"]["query"].size
    with pytest.raises(KeyholeError, match=f"min_heads is {HEADS + 1}.* {HEADS} heads") as failure:
        _measure(tiny("llama"), _different_tokens(1), min_heads=HEADS + 1)
    assert failure.value.code == ErrorCode.INVALID_REQUEST


def _attention_of(model) -> tuple[LayerAttention, torch.Tensor]:
    """The last layer's attention and a δ [batch, head, query, d_value]."""
    caught: list[tuple[LayerAttention, torch.Tensor]] = []

    class Catcher:
        def forward(self, attention: LayerAttention) -> None: ...

        def backward(self, attention: LayerAttention, delta: torch.Tensor) -> None:
            caught.append((attention, delta.transpose(1, 2)))

    seam.attach(model)
    with seam.observing(model, [Catcher()]):
        torch.autograd.backward(model(_different_tokens(1), use_cache=False).logits.float().logsumexp(-1).sum())
    return caught[0]


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_picks_and_scores_do_not_depend_on_the_size_of_the_gradient(size: float) -> None:
    """Squares of such advantages are beyond float32."""
    attention, delta = _attention_of(tiny("llama", dtype=torch.float32))
    _, expected, _ = buried_keys.picks_of_block(attention, range(LENGTH), delta, TOP_K)
    _, found, residual = buried_keys.picks_of_block(attention, range(LENGTH), delta * size, TOP_K)
    assert torch.equal(found.keys, expected.keys)
    torch.testing.assert_close(found.advantages, expected.advantages, rtol=1e-4, atol=0)
    assert residual.max() < advantage.IDENTITY_TOLERANCE[torch.float32]


def test_a_bfloat16_model_is_measured_with_float32_accuracy() -> None:
    attention, delta = _attention_of(tiny("gpt_oss", dtype=torch.bfloat16))
    names = ("query", "key", "value", "sinks", "output")
    exact = replace(attention, **{name: getattr(attention, name).double() for name in names})
    _, found, _ = buried_keys.picks_of_block(attention, range(LENGTH), delta, TOP_K)
    _, expected, _ = buried_keys.picks_of_block(exact, range(LENGTH), delta.double(), TOP_K)
    assert found.advantages.dtype == torch.float32
    # advantages of bfloat16 values lie closer together than float32 tells apart here and there
    assert (found.keys == expected.keys).double().mean() > 0.99
    same = found.keys == expected.keys
    torch.testing.assert_close(found.weights[same].double(), expected.weights[same], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.advantages[same].double(), expected.advantages[same], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_the_checks_pass_with_repeated_tokens_and_in_any_arithmetic(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(4, LENGTH)).checks
    assert 0 <= checks["max_identity_residual"] <= advantage.IDENTITY_TOLERANCE[dtype]
    assert checks["max_coalition_mismatches"] == 0
    assert checks["loss_nats"] > 0


@pytest.mark.parametrize("wrong", ["one left out", "another key", "another rank", "another score", "one head fewer"])
def test_coalitions_that_counting_does_not_find_fail_the_shard(wrong: str, monkeypatch) -> None:
    agree = coalition.agree

    def broken(picks: coalition.Picks, min_heads: int) -> coalition.Coalitions:
        found = agree(picks, min_heads)
        if wrong == "one left out":
            return agree(picks, min_heads + 1)
        changed = {
            "another key": {"key": found.key + 1},
            "another rank": {"median_rank": found.median_rank + 0.5},
            "another score": {"score": found.score * 1.001},
            "one head fewer": {"heads": found.heads - 1},
        }
        return replace(found, **changed[wrong])

    monkeypatch.setattr(coalition, "agree", broken)
    with pytest.raises(KeyholeError, match="counted again") as failure:
        _measure(tiny("llama"), _different_tokens(2), batch=1)
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_departure_beyond_the_tolerance_fails_the_shard(monkeypatch) -> None:
    monkeypatch.setitem(advantage.IDENTITY_TOLERANCE, torch.float32, 1e-12)
    with pytest.raises(KeyholeError, match="depart from") as failure:
        _measure(tiny("llama", dtype=torch.float32), _different_tokens(1))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_partial_query_range_keeps_the_sparse_step() -> None:
    parameters = BuriedKeysParameters.model_validate({"queries": {"start": 100}})
    assert (parameters.queries.start, parameters.queries.step) == (100, 16)


def test_no_tensor_is_as_large_as_one_matrix_of_scores(monkeypatch) -> None:
    """All that is made at once is a block of rows, or one of the model's own tensors."""
    length = 512
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    with LargestTensor() as watched:
        queries = SparseQueryRange(start=0, step=8)
        _measure(tiny("llama", dtype=torch.float32), tokens(2, length), batch=1, queries=queries)
    assert watched.elements <= 64 * length
