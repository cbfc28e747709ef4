"""Every statistic of attention profiles against brute force in float64 on tiny random models of each family."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.attention_profile import (
    LOCAL_KEYS,
    REPEATED_TABLE,
    TABLE,
    AttentionProfileParameters,
)
from services.contracts.probes.common import QueryRange
from services.contracts.probes.gradient_scale import GradientScaleParameters
from tests.unit.workers import reference, reference_profile
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, VOCABULARY, tiny, tokens
from tests.unit.workers.loaded import loaded
from tests.unit.workers.probes.test_gradient_scale import LargestTensor
from workers.attention import profile, repeated, rows, seam
from workers.attention.inputs import LayerAttention
from workers.probes import attention_profile, gradient_scale, passes
from workers.probes.measurement import Measurement

LENGTH = 23
BLOCK = 11  # two blocks and a start token are LENGTH
EVERY_QUERY = QueryRange(start=0, step=1)
STATISTICS = [column.name for column in TABLE.columns[5:]]
SCORES = [column.name for column in REPEATED_TABLE.columns[4:]]


def _measure(model, ids, *, first: int = 0, ready=None, **parameters) -> Measurement:
    sequences, length = ids.shape
    asked = {"sequences": sequences, "length": length, "batch": 2, "queries": EVERY_QUERY, "repeated_sequences": 3}
    probe, ids = attention_profile.PROBE, ids.numpy().astype(np.int32)
    return passes.measure(probe, ready or loaded(model), AttentionProfileParameters(**(asked | parameters)), ids, first)


def _statistics(measurement: Measurement, sequences: int, queries: int) -> dict[str, np.ndarray]:
    shape = (LAYERS, HEADS, sequences, queries)
    return {name: measurement.rows[TABLE.name][name].reshape(shape) for name in STATISTICS}


def _scores(measurement: Measurement) -> dict[str, np.ndarray]:
    return {name: measurement.rows[REPEATED_TABLE.name][name].reshape(LAYERS, HEADS, -1) for name in SCORES}


def _repeated(sequences: int, length: int = BLOCK) -> torch.Tensor:
    candidates = range(VOCABULARY)
    return torch.tensor([repeated.repeated_tokens(number, candidates, None, length) for number in range(sequences)])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_statistic_equals_brute_force(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _statistics(_measure(model, ids), 2, LENGTH)
    expected = reference_profile.profiles(reference.record(model, ids), range(LENGTH))
    assert list(expected) == STATISTICS
    for name, exact in expected.items():
        # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
        np.testing.assert_allclose(measured[name], exact, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_head_types_equal_brute_force_over_equal_tokens(family: str) -> None:
    model, ids = tiny(family), _repeated(2)
    measured = _scores(_measure(model, tokens(2, LENGTH)))
    expected = reference_profile.head_type_scores(reference.record(model, ids), ids)
    for name, exact in expected.items():
        np.testing.assert_allclose(measured[name], exact, rtol=2e-5, atol=2e-5, err_msg=name)


def test_a_head_type_score_is_the_share_of_all_weight_up_to_the_number_of_rows() -> None:
    """The share of all weight that falls on the pairs of a type is how TransformerLens' head detector scores it."""
    model, ids = tiny("llama"), _repeated(1)
    measured = _scores(_measure(model, tokens(1, LENGTH)))
    for layer, recorded in enumerate(reference.record(model, ids).layers):
        pattern = recorded.pattern[0]
        for name, pairs in reference_profile.detection_patterns(ids[0]).items():
            share = (pattern * pairs).sum((1, 2)) / pattern.sum((1, 2))
            queries = 2 * BLOCK if name == "previous" else BLOCK
            found = measured[f"{name}_score"][layer, :, 0] * queries / (2 * BLOCK + 1)
            np.testing.assert_allclose(found, share, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_statistics_in_float32_keep_four_decimals(family: str) -> None:
    ids = tokens(2, LENGTH)
    measured = _statistics(_measure(tiny(family, dtype=torch.float32), ids), 2, LENGTH)
    expected = reference_profile.profiles(reference.record(tiny(family), ids), range(LENGTH))
    for name, exact in expected.items():
        np.testing.assert_allclose(measured[name], exact, atol=1e-4, err_msg=name)  # measured: 6e-6


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_a_bfloat16_model_is_measured_with_float32_accuracy(family: str) -> None:
    """Given the model's own bfloat16 queries and keys, rows are as float64 gives them."""
    caught: list[LayerAttention] = []

    class Catcher:
        def forward(self, attention: LayerAttention) -> None:
            caught.append(attention)

        def backward(self, attention: LayerAttention, delta: torch.Tensor) -> None: ...

    model = tiny(family, dtype=torch.bfloat16)
    seam.attach(model)
    passes.forward_pass(model, tokens(2, LENGTH), [Catcher()])
    assert len(caught) == LAYERS
    for attention in caught:
        found = profile.profile_of_block(attention, range(LENGTH), LOCAL_KEYS)
        had = {name: getattr(attention, name) for name in ("query", "key", "value", "sinks")}
        exact = replace(attention, **{name: None if each is None else each.double() for name, each in had.items()})
        expected = profile.profile_of_block(exact, range(LENGTH), LOCAL_KEYS)
        for name in STATISTICS:
            one, other = getattr(found, name).double(), getattr(expected, name).double()
            torch.testing.assert_close(one, other, atol=2e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
@pytest.mark.parametrize("block", [1, 1000])
def test_results_do_not_depend_on_the_size_of_blocks(family: str, block: int, monkeypatch) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    whole = _measure(model, ids)
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    _assert_equal(_measure(model, ids), whole)


def test_batches_and_shards_change_no_row() -> None:
    """Five sequences in batches of three, and the same in shards of two, one and two with batches of one."""
    model, ids = tiny("llama"), tokens(5, LENGTH)
    whole = _measure(model, ids, batch=3)
    parts = [(0, 2), (2, 3), (3, 5)]
    shards = [_measure(model, ids[first:stop], first=first, batch=1, sequences=5) for first, stop in parts]
    assert [len(shard.rows[REPEATED_TABLE.name]["head"]) for shard in shards] == [16, 8, 0]
    for table in (TABLE, REPEATED_TABLE):
        names = [column.name for column in table.columns[1:]]
        joined = {name: np.concatenate([shard.rows[table.name][name] for shard in shards]) for name in names}
        key = [joined[name] for name in reversed(table.key)]
        order = np.lexsort(key)
        for name in names:
            np.testing.assert_allclose(joined[name][order], whole.rows[table.name][name], atol=1e-5, err_msg=name)


def test_queries_are_chosen_by_start_stop_and_step() -> None:
    model, ids = tiny("mistral"), tokens(2, LENGTH)
    every = _statistics(_measure(model, ids), 2, LENGTH)
    some = _statistics(_measure(model, ids, queries=QueryRange(start=4, stop=18, step=3)), 2, 5)
    for name, found in some.items():
        np.testing.assert_allclose(found, every[name][..., 4:18:3], atol=1e-5)


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    ids = tokens(2, LENGTH)
    queries = QueryRange(start=2, step=5)
    measured = _measure(tiny("llama", dtype=torch.float32), ids, first=7, repeated_sequences=8, queries=queries)
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    for table in (TABLE, REPEATED_TABLE):
        columns = measured.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
    keys = zip(*(measured.rows[TABLE.name][name] for name in TABLE.key), strict=True)
    assert list(keys) == list(itertools.product(range(LAYERS), range(HEADS), (7, 8), range(2, LENGTH, 5)))
    keys = zip(*(measured.rows[REPEATED_TABLE.name][name] for name in REPEATED_TABLE.key), strict=True)
    assert list(keys) == list(itertools.product(range(LAYERS), range(HEADS), (7,)))


def test_a_probe_that_shares_its_passes_measures_what_it_measures_alone_and_disturbs_no_other() -> None:
    """Its own passes come first, and neither their tokens nor their layers reach the other probe."""
    ready, ids = loaded(tiny("gpt_oss")), tokens(3, LENGTH)
    shared = {"sequences": 3, "length": LENGTH, "batch": 2, "queries": EVERY_QUERY}
    profiled = (attention_profile.PROBE, AttentionProfileParameters(**shared))
    spread = (gradient_scale.PROBE, GradientScaleParameters(**shared))
    alone = [passes.measure(*task[:1], ready, task[1], ids.numpy(), 0) for task in (profiled, spread)]
    together = passes.measure_together(ready, [profiled, spread], ids.numpy(), 0)
    for one, other in zip(alone, together, strict=True):
        assert isinstance(other, Measurement)
        _assert_equal(one, other)


def _assert_equal(one: Measurement, other: Measurement) -> None:
    for table, columns in one.rows.items():
        for name, values in columns.items():
            np.testing.assert_allclose(values, other.rows[table][name], atol=1e-5, err_msg=name)


def test_entropy_under_a_sink_is_that_of_the_keys_and_gives_the_one_with_the_sink_back() -> None:
    """H with the sink as one more outcome is h(s) + (1 − s) H, h the binary entropy, s the weight of the sink."""
    model, ids = tiny("gpt_oss"), tokens(1, LENGTH)
    measured = _statistics(_measure(model, ids), 1, LENGTH)
    taken, entropy = measured["no_key_mass"].astype(float), measured["entropy_nats"].astype(float)
    assert (taken > 0.01).any() and (measured["top_weight"] < 1 - taken + 1e-6).all()
    with_sink = -taken * np.log(taken) - (1 - taken) * np.log1p(-taken) + (1 - taken) * entropy
    for layer, recorded in enumerate(reference.record(model, ids).layers):
        pattern = torch.cat([recorded.pattern, 1 - recorded.pattern.sum(-1, keepdim=True)], -1)
        exact = torch.special.entr(pattern).sum(-1)[0].numpy()
        np.testing.assert_allclose(with_sink[layer, :, 0], exact, atol=1e-4)


def test_a_uniform_row_reaches_the_bound_and_a_single_key_has_none() -> None:
    model, ids = tiny("llama"), tokens(1, LENGTH)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.zero_()
    measured = _statistics(_measure(model, ids), 1, LENGTH)
    keys = np.arange(1, LENGTH + 1)
    np.testing.assert_allclose(
        measured["entropy_nats"], np.broadcast_to(np.log(keys), measured["top_key"].shape), atol=1e-6
    )
    np.testing.assert_allclose(measured["local_mass"][0, 0, 0], np.minimum(1, 8 / keys), atol=1e-6)
    assert (measured["top_key"] == 0).all()  # the first of equal ones
    assert np.isnan(measured["previous_weight"][..., 0]).all()


def test_scores_far_beyond_the_range_of_exp_give_sharp_rows_and_no_nan() -> None:
    inputs = _made_up(torch.full((1, 1, 4, 1), 3e4), torch.tensor([1.0, -1.0, 0.0, 2.0])[None, None, :, None])
    found = profile.profile_of_block(inputs, range(4), LOCAL_KEYS)
    assert found.top_key.tolist() == [[[0, 0, 0, 3]]]
    assert found.entropy_nats.tolist() == [[[0.0] * 4]]
    assert found.local_mass.tolist() == [[[1.0] * 4]]
    assert float(profile.excess_over_bounds(found)) <= 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=40), st.floats(-100, 100, width=32))
def test_any_row_is_profiled_within_its_bounds_and_whatever_is_added_to_all_scores(
    row: list[float], added: float
) -> None:
    scores = torch.tensor(row, dtype=torch.float64)
    last = len(row) - 1
    found, moved = (
        profile.profile_of_block(
            _made_up(torch.ones(1, 1, len(row), 1).double(), each[None, None, :, None]),
            range(last, last + 1),
            LOCAL_KEYS,
        )
        for each in (scores, scores + added)
    )
    weights = scipy.special.softmax(scores.numpy())
    assert float(found.entropy_nats) == pytest.approx(scipy.stats.entropy(weights), abs=1e-9)
    assert float(found.top_weight) == pytest.approx(weights.max()) and weights[int(found.top_key)] == weights.max()
    assert float(found.local_mass) == pytest.approx(weights[-LOCAL_KEYS:].sum())
    assert float(profile.excess_over_bounds(found)) < 1e-12
    assert float(moved.entropy_nats) == pytest.approx(float(found.entropy_nats), abs=1e-9)
    assert float(found.no_key_mass) == 0


def _made_up(query: torch.Tensor, key: torch.Tensor) -> LayerAttention:
    value, output = torch.ones_like(key), torch.ones_like(query).transpose(1, 2)
    return LayerAttention(0, query, key, value, 1.0, None, None, None, output, torch.nn.Identity(), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "gpt_oss", "opt"])
def test_self_checks_stay_within_their_tolerances_and_are_stored_with_them(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(2, LENGTH)).checks
    assert 0 <= checks["max_output_residual"] <= checks["output_residual_tolerance"] / 3
    assert 0 <= checks["max_entropy_difference_nats"] <= checks["entropy_difference_tolerance_nats"] / 3
    assert checks["max_bound_excess"] <= checks["bound_excess_tolerance"] / 3
    assert checks["repeated_length"] == BLOCK


@pytest.mark.parametrize("wrong", [{"scaling": 0.5}, {"softcap": 1.0}, {"sinks": torch.ones(HEADS).double()}])
def test_rows_that_are_not_the_models_fail_the_shard(wrong: dict, monkeypatch) -> None:
    monkeypatch.setattr(passes.seam, "_show", _showing(wrong))
    with pytest.raises(KeyholeError, match="output of the rows") as failure:
        _measure(tiny("llama"), tokens(1, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def _showing(wrong: dict):
    show = seam._show

    def changed(inputs, *others) -> None:
        show(replace(inputs, **wrong), *others)

    return changed


@pytest.mark.parametrize("damage", [{"entropy_nats": 0.01}, {"local_mass": 1.01}, {"entropy_nats": torch.nan}])
def test_a_wrong_entropy_or_mass_fails_the_shard(damage: dict, monkeypatch) -> None:
    right = profile.profile_of_block

    def wrong(*call) -> profile.RowProfile:
        found = right(*call)
        return replace(found, **{name: getattr(found, name) + value for name, value in damage.items()})

    monkeypatch.setattr(profile, "profile_of_block", wrong)
    with pytest.raises(KeyholeError) as failure:
        _measure(tiny("llama"), tokens(1, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_repeated_tokens_are_different_and_depend_on_the_number_of_the_sequence_alone() -> None:
    candidates = range(100, 160)
    found = [repeated.repeated_tokens(number, candidates, 7, 50) for number in range(3)]
    assert found == [repeated.repeated_tokens(number, candidates, 7, 50) for number in range(3)]
    for sequence in found:
        assert sequence[0] == 7 and sequence[1:51] == sequence[51:]
        assert len(set(sequence[1:51])) == 50 and set(sequence[1:]) <= set(candidates)
    assert found[0] != found[1]
    without_start = repeated.repeated_tokens(0, candidates, None, 59)
    assert len(set(without_start)) == 60 and without_start.count(without_start[0]) == 1


def test_blocks_fit_the_length_of_the_job_and_the_vocabulary() -> None:
    assert repeated.repeated_length(50, 1024, 1000, has_start=True) == 50
    assert repeated.repeated_length(50, 64, 1000, has_start=True) == 31
    assert repeated.repeated_length(50, 1024, 20, has_start=True) == 20
    assert repeated.repeated_length(50, 1024, 20, has_start=False) == 19
    checks = _measure(tiny("gpt2"), tokens(1, LENGTH), repeated_length=4).checks
    assert checks["repeated_length"] == 4


def test_random_tokens_leave_out_special_ones_and_begin_as_texts_do(smollm2) -> None:
    candidates, start = attention_profile._vocabulary(smollm2)
    special = set(smollm2.tokenizer.all_special_ids)
    assert start == smollm2.tokenizer.bos_token_id and start in special
    assert not special & set(candidates)
    assert len(candidates) == smollm2.architecture.vocabulary_size - len(special)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_no_tensor_is_as_large_as_one_matrix_of_scores(family: str, monkeypatch) -> None:
    """All that is made at once is a block of rows, or one of the model's own tensors."""
    length = 512
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**11)
    ready, ids = loaded(tiny(family, dtype=torch.float32)), tokens(2, length)
    with LargestTensor() as watched:
        _measure(None, ids, ready=ready, batch=1, queries=QueryRange(start=0, step=8), repeated_length=20)
    # gpt_oss: [1, 1, T, T] booleans of the window, and the four experts' [T, 4, 96]
    assert watched.elements <= {"llama": 64, "gpt_oss": 400}[family] * length
