"""Distances between checkpoints against whole patterns in float64, SciPy, and every permutation of the heads."""

import gc
import itertools
import shutil
import weakref
from collections import namedtuple
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import QueryRange
from services.contracts.probes.pattern_stability import TABLE, Checkpoint, PatternStabilityParameters
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.attention import pattern_comparison, rows
from workers.attention.spilled import SpilledModel, spilled_bytes
from workers.models.loaded import LoadedModel
from workers.models.others import OtherModels
from workers.probes import pattern_stability
from workers.probes.measurement import Measurement

LENGTH = 23
EVERY_QUERY = QueryRange(start=0, step=1)
MEASURES = ("js_nats", "total_variation", "cosine")
PAIRS = [(0, 1), (0, 2), (1, 2)]


def perturbed(model: PreTrainedModel, size: float = 0.05, seed: int = 5) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = parameter.data + size * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return model


def checkpoints(family: str, dtype: torch.dtype = torch.float64) -> list[PreTrainedModel]:
    """A model, one of another seed, and the first one a little moved."""
    return [tiny(family, dtype=dtype), tiny(family, dtype=dtype, seed=1), perturbed(tiny(family, dtype=dtype))]


def parameters(number: int, ids: Tensor, queries: QueryRange = EVERY_QUERY, batch: int = 2):
    others = [Checkpoint(model=f"path:{step}", step=step) for step in range(1, number)]
    sequences, length = ids.shape
    return PatternStabilityParameters(
        sequences=sequences, length=length, batch=batch, queries=queries, checkpoints=others
    )


def measure(models: Sequence[PreTrainedModel], ids: Tensor, first_sequence: int = 0, **asked) -> Measurement:
    ready = [loaded(model) for model in models]
    others = OtherModels([lambda model=model: model for model in ready[1:]])
    asked_for = parameters(len(models), ids, **asked)
    return pattern_stability.measure(ready[0], asked_for, ids.numpy().astype(np.int32), first_sequence, others)


def columns(measurement: Measurement, sequences: int, names: Sequence[str] = MEASURES) -> np.ndarray:
    """[measure, layer, head, sequence, pair]"""
    found = measurement.rows[TABLE.name]
    return np.stack([found[name].reshape(LAYERS, HEADS, sequences, -1) for name in names])


def whole_patterns(models: Sequence[PreTrainedModel], ids: Tensor, queries: range) -> np.ndarray:
    """[model, layer, sequence, head, query, key], with what a sink takes as the last key."""
    recorded = [np.stack([layer.pattern for layer in reference.record(model, ids).layers]) for model in models]
    patterns = np.stack(recorded)[..., list(queries), :]
    return np.concatenate([patterns, 1 - patterns.sum(-1, keepdims=True)], axis=-1).clip(0)


def plain_distances(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The three distances, means over queries: [measure, …] of patterns […, query, key]."""
    cosine = 1 - (p * q).sum(-1) / np.linalg.norm(p, axis=-1) / np.linalg.norm(q, axis=-1)
    with np.errstate(invalid="ignore"):
        js = np.nan_to_num(jensenshannon(p, q, axis=-1)) ** 2  # SciPy: the root of -1e-17 is NaN
    return np.stack([js, np.abs(p - q).sum(-1) / 2, cosine]).mean(-1)


def best_permutation(costs: np.ndarray) -> tuple[int, ...]:
    return min(
        itertools.permutations(range(len(costs))), key=lambda order: sum(costs[h, g] for h, g in enumerate(order))
    )


def expected(models: Sequence[PreTrainedModel], ids: Tensor, queries: range) -> tuple[np.ndarray, ...]:
    """By index, paired head and by assignment, each [(measure,) layer, head, sequence, pair]."""
    patterns = whole_patterns(models, ids, queries)
    number = len(PAIRS)
    by_index, by_assignment = np.empty((2, 3, LAYERS, HEADS, len(ids), number))
    paired = np.empty((LAYERS, HEADS, len(ids), number), dtype=int)
    for (place, (a, b)), layer in itertools.product(enumerate(PAIRS), range(LAYERS)):
        p, q = patterns[a, layer], patterns[b, layer]  # sequence, head, query, key
        every = plain_distances(p[:, :, None], q[:, None])  # measure, sequence, head, other
        order = best_permutation(every[0].mean(0))
        for h, g in enumerate(order):
            by_index[:, layer, h, :, place] = every[:, :, h, h]
            by_assignment[:, layer, h, :, place] = every[:, :, h, g]
            paired[layer, h, :, place] = g
    return by_index, paired, by_assignment


@pytest.mark.parametrize("family", FAMILIES)
def test_every_distance_and_pairing_equals_brute_force(family: str) -> None:
    models, ids = checkpoints(family), tokens(3, LENGTH)
    found = measure(models, ids)
    by_index, paired, by_assignment = expected(models, ids, range(LENGTH))
    # stored in float32; rotary and norm layers compute in float32 inside a float64 model
    np.testing.assert_allclose(columns(found, 3), by_index, atol=3e-6)
    np.testing.assert_array_equal(columns(found, 3, ["paired_head"])[0], paired)
    np.testing.assert_allclose(columns(found, 3, [f"paired_{name}" for name in MEASURES]), by_assignment, atol=3e-6)
    assert (by_assignment[0].sum((1, 2)) <= by_index[0].sum((1, 2)) + 1e-12).all()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
def test_queries_are_chosen_by_start_stop_and_step(family: str) -> None:
    """With windows too, whose masks are stored for the measured queries alone."""
    models, ids = checkpoints(family), tokens(2, LENGTH)
    found = measure(models, ids, queries=QueryRange(start=4, stop=18, step=3))
    by_index, _, by_assignment = expected(models, ids, range(4, 18, 3))
    np.testing.assert_allclose(columns(found, 2), by_index, atol=3e-6)
    np.testing.assert_allclose(columns(found, 2, [f"paired_{name}" for name in MEASURES]), by_assignment, atol=3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_distances_in_the_models_arithmetic_are_near_those_in_float64(dtype: torch.dtype, tolerance: float) -> None:
    """Statistics are float32 either way; what is left is what the dtype does to queries and keys (measured: 3e-7 in
    float32, 0.006 in bfloat16)."""
    ids = tokens(3, LENGTH)
    found = columns(measure(checkpoints("llama", dtype), ids), 3)
    np.testing.assert_allclose(found, expected(checkpoints("llama"), ids, range(LENGTH))[0], atol=tolerance)


def with_heads_in_order(model: PreTrainedModel, order: Sequence[int]) -> PreTrainedModel:
    """The same function of a llama model, its query heads numbered differently; ``order`` keeps groups together."""
    attentions = [layer.self_attn for layer in model.model.layers]
    shared = [order[place] // 2 for place in range(0, HEADS, 2)]  # two query heads to a key/value head
    for attention in attentions:
        for projection, heads in (("q_proj", order), ("k_proj", shared), ("v_proj", shared)):
            weight = getattr(attention, projection).weight
            weight.data = weight.data.unflatten(0, (len(heads), -1))[list(heads)].flatten(0, 1)
        output = attention.o_proj.weight
        output.data = output.data.unflatten(1, (HEADS, -1))[:, list(order)].flatten(1, 2)
    return model


def test_heads_in_another_order_are_found_by_assignment_at_distance_0() -> None:
    ids, order = tokens(3, LENGTH), [3, 2, 0, 1]
    models = [tiny("llama"), with_heads_in_order(tiny("llama"), order)]
    with torch.no_grad():
        torch.testing.assert_close(models[0](ids).logits, models[1](ids).logits)
    found = measure(models, ids)
    paired = columns(found, 3, ["paired_head"])[0]
    assert (paired == np.argsort(order)[None, :, None, None]).all()
    assert columns(found, 3, [f"paired_{name}" for name in MEASURES]).max() < 1e-6
    assert columns(found, 3).mean((2, 3, 4)).min() > 0.1


def test_a_checkpoint_and_its_copy_are_at_distance_0() -> None:
    found = measure([tiny("gemma2"), tiny("gemma2")], tokens(2, LENGTH))
    assert columns(found, 2).max() == 0
    assert (columns(found, 2, ["paired_head"])[0] == np.arange(HEADS)[None, :, None, None]).all()


def test_the_order_of_two_checkpoints_changes_nothing_but_the_direction() -> None:
    models, ids = checkpoints("qwen3")[:2], tokens(2, LENGTH)
    there, back = measure(models, ids), measure(models[::-1], ids)
    np.testing.assert_allclose(columns(there, 2), columns(back, 2), atol=1e-7)
    one, other = (columns(each, 2, ["paired_head"])[0, :, :, 0, 0] for each in (there, back))
    for layer in range(LAYERS):
        assert (other[layer][one[layer]] == np.arange(HEADS)).all()


@pytest.mark.parametrize(("block", "held"), [(1, 2**24), (2**18, 1), (300, 400)])
def test_results_do_not_depend_on_blocks_and_batches(block: int, held: int, monkeypatch) -> None:
    models, ids = checkpoints("gpt_oss"), tokens(3, LENGTH)
    whole = measure(models, ids, batch=3).rows[TABLE.name]
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    monkeypatch.setattr(pattern_comparison, "CPU_HELD", held)
    for name, values in measure(models, ids, batch=2).rows[TABLE.name].items():
        np.testing.assert_allclose(values, whole[name], atol=1e-6)


def test_rows_are_sorted_and_typed_as_the_table_says() -> None:
    ids = tokens(2, LENGTH)
    found = measure(checkpoints("llama", torch.float32), ids, first_sequence=7).rows[TABLE.name]
    assert ["job_id", *found] == [column.name for column in TABLE.columns]
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    assert all(found[column.name].dtype == types[column.type] for column in TABLE.columns[1:])
    keys = zip(*(found[name] for name in ("layer", "head", "sequence", "first", "second")), strict=True)
    wanted = itertools.product(range(LAYERS), range(HEADS), (7, 8), PAIRS)
    assert list(keys) == [(layer, head, sequence, *pair) for layer, head, sequence, pair in wanted]


def refusal(first: PreTrainedModel, other: PreTrainedModel) -> KeyholeError:
    with pytest.raises(KeyholeError) as refused:
        measure([first, other], tokens(1, 8))
    return refused.value


def changed(**fields: int) -> PreTrainedModel:
    config = FAMILIES["llama"]()
    for name, value in fields.items():
        setattr(config, name, value)
    return type(tiny("llama"))(config).double().eval()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_hidden_layers": 3}, "checkpoint 1 (path:1) cannot be compared: it has 3 layers, the job's model 2"),
        ({"num_attention_heads": 2}, "checkpoint 1 (path:1) cannot be compared: it has 2 heads, the job's model 4"),
        ({"vocab_size": 77}, "Checkpoint 1 (path:1) does not share the model's tokenizer"),
    ],
)
def test_checkpoints_of_another_shape_or_vocabulary_are_refused_by_name(fields: dict[str, int], said: str) -> None:
    error = refusal(tiny("llama"), changed(**fields))
    assert said in error.message
    assert error.code in (ErrorCode.INVALID_REQUEST, ErrorCode.MODEL_UNSUPPORTED)


def test_a_disk_without_room_is_refused_before_anything_is_computed(monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**6, 10**6, 100))
    error = refusal(tiny("llama"), tiny("llama", seed=1))
    assert error.code == ErrorCode.DISK_FULL
    assert "TMPDIR" in error.hint


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_the_estimate_of_the_disk_covers_what_is_written(family: str) -> None:
    ids = tokens(3, 64)
    found = measure([tiny(family), tiny(family, seed=1)], ids)
    estimate = 2 * spilled_bytes(loaded(tiny(family)).architecture, 3, range(64), itemsize=8)
    assert 0.5 * estimate < found.checks["spilled_bytes"] < 1.1 * estimate


def other_heads(_: SpilledModel, found: Tensor) -> Tensor:
    return found.flip(0)  # heads in another order


def wrong_scale(model: SpilledModel, found: Tensor) -> Tensor:
    sharper = found**1.5
    return sharper / sharper.sum(-1, keepdim=True)


@pytest.mark.parametrize("wrong", [other_heads, wrong_scale])
def test_patterns_that_are_not_the_models_fail_the_self_check(
    wrong: Callable[[SpilledModel, Tensor], Tensor], monkeypatch
) -> None:
    right, broken = SpilledModel.patterns, []

    def patterns(self: SpilledModel, layer: int, sequence: int, block: range) -> Tensor:
        broken.append(self) if not broken else None
        found = right(self, layer, sequence, block)
        return wrong(self, found) if self is broken[0] else found  # in one of the models

    monkeypatch.setattr(SpilledModel, "patterns", patterns)
    with pytest.raises(KeyholeError, match="max_distance_error") as failure:
        measure(checkpoints("llama", torch.float32), tokens(2, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gpt_oss"])
def test_the_self_checks_are_stored_and_far_below_their_tolerances(family: str, dtype: torch.dtype) -> None:
    checks = measure(checkpoints(family, dtype), tokens(2, LENGTH)).checks
    assert 0 <= checks["max_output_departure"] < pattern_stability.OUTPUT_TOLERANCE[dtype] / 5
    assert 0 <= checks["max_distance_error"] < pattern_stability.DISTANCE_TOLERANCE / 50
    assert 0 <= checks["max_formula_difference"] < pattern_stability.DISTANCE_TOLERANCE / 50
    assert checks["max_asymmetry"] < 1e-6
    assert checks["max_distance_from_itself"] == 0
    assert checks["max_js_beyond_bounds"] < 1e-6


def test_one_other_model_is_in_memory_at_a_time() -> None:
    ids, alive, most = tokens(1, 8), weakref.WeakSet(), []

    def load(seed: int) -> LoadedModel:
        gc.collect()
        model = tiny("llama", seed=seed)
        alive.add(model)
        most.append(len(alive))
        return loaded(model)

    others = OtherModels([lambda seed=seed: load(seed) for seed in range(1, 5)])
    pattern_stability.measure(loaded(tiny("llama")), parameters(5, ids), ids.numpy(), 0, others)
    assert most == [1, 1, 1, 1]


class LargestMade(TorchDispatchMode):
    """Size of the largest tensor that an operation made, in float32 numbers; views of what there was are not made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple) else (result,):
            if isinstance(made, Tensor) and not made._is_view():
                self.numbers = max(self.numbers, made.nbytes // 4)
        return result


@pytest.mark.parametrize("number", [2, 6])
def test_memory_is_a_block_of_rows_whatever_the_length_and_the_number_of_checkpoints(number: int, monkeypatch) -> None:
    length, held = 256, 2**14
    monkeypatch.setattr(rows, "CPU_BLOCK", 2**13)
    monkeypatch.setattr(pattern_comparison, "CPU_HELD", held)
    ids, patterns, sizes = tokens(2, length), SpilledModel.patterns, []

    def watched_patterns(self: SpilledModel, *asked) -> Tensor:
        found = patterns(self, *asked)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(SpilledModel, "patterns", watched_patterns)
    config = FAMILIES["llama"]()
    config.max_position_embeddings = length
    ready = [loaded(perturbed(type(tiny("llama"))(config).eval(), seed=seed)) for seed in range(number)]
    others = OtherModels([lambda model=model: model for model in ready[1:]])
    asked = parameters(number, ids, batch=1, queries=QueryRange(start=0, step=4))
    with LargestMade() as watched:
        pattern_stability.measure(ready[0], asked, ids.numpy(), 0, others)
    assert watched.numbers <= 64 * length  # one of the model's own tensors; scores are 4 heads × 64 queries × 256 keys
    # with the sinks' column; at least one query of each model
    assert number * max(sizes) <= max(held * 1.1, number * HEADS * (length + 1))
    assert max(sizes) > held / number / 2
