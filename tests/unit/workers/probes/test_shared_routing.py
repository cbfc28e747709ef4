"""Every loss against brute force in float64 on tiny random models of each family."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import QueryRange
from services.contracts.probes.shared_routing import ALL_AT_ONCE, TABLE, UNMODIFIED_TABLE, SharedRoutingParameters
from tests.unit.workers.families import FAMILIES, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from tests.unit.workers.routing_reference import token_losses, token_losses_by_layer
from workers.attention import rows, seam
from workers.attention.shared import shared_route
from workers.attention.softmax import softmax_route
from workers.models.others import OtherModels
from workers.models.restarting import decoder_layers
from workers.probes import shared_routing
from workers.probes.measurement import Measurement

LENGTH = 23
ROUTINGS = ("shared_softmax", "sigmoid", "shared_sigmoid")
every_family = pytest.mark.parametrize("family", FAMILIES)


def _measure(model, ids, *, first_sequence: int = 0, **parameters: Any) -> Measurement:
    asked = {"sequences": len(ids), "length": ids.shape[1], "batch": 2, **parameters}
    return shared_routing.measure(
        loaded(model), SharedRoutingParameters(**asked), ids.numpy().astype(np.int32), first_sequence, OtherModels()
    )


def _losses(measurement: Measurement, sequences: int, queries: int = LENGTH - 1) -> np.ndarray:
    """[change, sequence, query]"""
    return measurement.rows[TABLE.name]["loss_nats"].reshape(-1, sequences, queries)


@pytest.mark.parametrize("routing", ROUTINGS)
@every_family
def test_every_loss_equals_brute_force(family: str, routing: str, monkeypatch) -> None:
    monkeypatch.setattr(rows, "CPU_BLOCK", 300)  # several blocks of queries
    model, ids = tiny(family), tokens(3, LENGTH)
    measured = _measure(model, ids, routing=routing)
    unmodified = token_losses(model, ids, "softmax", [])
    expected = np.stack([token_losses(model, ids, routing, [layer]) for layer in range(LAYERS)])
    # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
    close = {"rtol": 3e-5, "atol": 3e-5}
    np.testing.assert_allclose(_losses(measured, 3), expected, **close)
    np.testing.assert_allclose(measured.rows[UNMODIFIED_TABLE.name]["loss_nats"], unmodified.reshape(-1), **close)
    extra = measured.rows[TABLE.name]["extra_loss_nats"].reshape(expected.shape)
    np.testing.assert_allclose(extra, expected - unmodified, **close)
    assert np.abs(extra).max() > 0.05  # the routes are not the model's own
    assert measured.checks["restarted"] == 1


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_all_layers_are_changed_at_once_as_layer_minus_one(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _measure(model, ids, together=True)
    assert set(measured.rows[TABLE.name]["layer"]) == {ALL_AT_ONCE}
    expected = token_losses(model, ids, "shared_softmax", range(LAYERS))
    np.testing.assert_allclose(_losses(measured, 2)[0], expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("own", ["sigmoid", "shared_softmax", "shared_sigmoid"])
def test_layers_that_are_left_alone_keep_the_routing_the_model_was_trained_with(own: str) -> None:
    model, ids = tiny("llama"), tokens(2, LENGTH)
    ready = loaded(model)
    seam.define(model, AttentionDefinition(routing=own, sigmoid_bias=-0.6))
    parameters = SharedRoutingParameters(sequences=2, length=LENGTH, batch=2, routing="sigmoid", bias=0.5)
    measured = shared_routing.measure(ready, parameters, ids.numpy().astype(np.int32), 0, OtherModels())
    unmodified = token_losses(model, ids, own, range(LAYERS), -0.6)
    expected = [
        token_losses_by_layer(model, ids, {1 - one: (own, -0.6), one: ("sigmoid", 0.5)}) for one in range(LAYERS)
    ]
    close = {"rtol": 3e-5, "atol": 3e-5}
    np.testing.assert_allclose(measured.rows[UNMODIFIED_TABLE.name]["loss_nats"], unmodified.reshape(-1), **close)
    np.testing.assert_allclose(_losses(measured, 2), np.stack(expected), **close)


@every_family
def test_restarted_passes_give_the_losses_of_whole_ones(family: str, monkeypatch) -> None:
    model, ids = tiny(family, dtype=torch.float32), tokens(2, LENGTH)
    restarted = _measure(model, ids)
    monkeypatch.setattr(shared_routing, "decoder_layers", lambda model: None)
    whole = _measure(tiny(family, dtype=torch.float32), ids)
    assert (restarted.checks["restarted"], whole.checks["restarted"]) == (1, 0)
    np.testing.assert_array_equal(_losses(restarted, 2), _losses(whole, 2))


def test_layers_below_the_changed_one_are_not_computed() -> None:
    model, ids = tiny("llama"), tokens(2, LENGTH)
    ready = loaded(model)
    parameters = SharedRoutingParameters(sequences=2, length=LENGTH, batch=2)
    arguments = (ready, parameters, ids.numpy(), 0, OtherModels())
    shared_routing.measure(*arguments)  # tries out restarting
    calls: list[int] = []
    layers = decoder_layers(model)
    assert layers is not None
    for index, layer in enumerate(layers):
        layer.mlp.register_forward_hook(lambda *_, index=index: calls.append(index))
    shared_routing.measure(*arguments)
    assert calls == [0, 1, 0, 1, 1]  # unmodified, from layer 0 on, from layer 1 on


def test_a_model_that_carries_more_than_its_layers_outputs_gets_whole_passes() -> None:
    """A layer that reads what happened within another one: in a restarted pass nothing does."""
    model, ids = tiny("llama"), tokens(2, LENGTH)
    first, last = model.model.layers
    left: list[torch.Tensor] = []
    first.mlp.register_forward_hook(lambda module, arguments, output: left.append(output))
    last.mlp.register_forward_hook(lambda module, arguments, output: output + left.pop() if left else output)
    measured = _measure(model, ids)
    assert measured.checks["restarted"] == 0
    assert len(left) == 0


def test_a_model_with_one_head_loses_nothing_by_sharing() -> None:
    config = FAMILIES["llama"]()
    config.num_attention_heads = config.num_key_value_heads = 1
    config.head_dim = 32
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data * 20 if parameter.ndim == 2 else parameter.data
    extra = _measure(model, tokens(2, LENGTH)).rows[TABLE.name]["extra_loss_nats"]
    assert np.abs(extra).max() < 1e-6


@pytest.mark.parametrize("bias", [-2.0, "sequence_length"])
@pytest.mark.parametrize("routing", ["sigmoid", "shared_sigmoid"])
def test_a_bias_is_the_given_number_or_minus_log_of_the_length(routing: str, bias: Any) -> None:
    model, ids = tiny("mistral"), tokens(2, LENGTH)
    measured = _measure(model, ids, routing=routing, bias=bias, layers=[1])
    number = -np.log(LENGTH) if bias == "sequence_length" else bias
    expected = token_losses(model, ids, routing, [1], number)
    np.testing.assert_allclose(_losses(measured, 2)[0], expected, rtol=3e-5, atol=3e-5)


def test_a_fitted_bias_loses_less_than_any_on_a_grid() -> None:
    model, ids = tiny("llama"), tokens(3, LENGTH)
    measured = _measure(model, ids, routing="shared_sigmoid", bias="fitted", fit_sequences=3)
    losses = _losses(measured, 3)
    for layer in range(LAYERS):
        grid = [token_losses(model, ids, "shared_sigmoid", [layer], b).mean() for b in np.linspace(-8, 2, 41)]
        assert losses[layer].mean() <= min(grid) + 2e-3  # the search ends within 0.1 of the best bias
        bias = measured.checks[f"bias_layer_{layer}"]
        expected = token_losses(model, ids, "shared_sigmoid", [layer], bias)
        np.testing.assert_allclose(losses[layer], expected, rtol=3e-5, atol=3e-5)


def test_a_fitted_bias_is_chosen_on_the_first_sequences_alone() -> None:
    model, ids = tiny("llama"), tokens(4, LENGTH)
    other = torch.cat([ids[:2], tokens(2, LENGTH, seed=5)])
    asked = {"routing": "sigmoid", "bias": "fitted", "fit_sequences": 2, "layers": [0]}
    assert (
        _measure(model, ids, **asked).checks["bias_layer_0"] == _measure(model, other, **asked).checks["bias_layer_0"]
    )
    assert SharedRoutingParameters(sequences=50, batch=4, routing="sigmoid", bias="fitted").shard_sequences() == 52


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    measured = _measure(
        tiny("llama", dtype=torch.float32), tokens(2, LENGTH), first_sequence=7, queries=QueryRange(start=2, step=5)
    )
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    for table in (TABLE, UNMODIFIED_TABLE):
        columns = measured.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
    product = list(itertools.product(range(LAYERS), (7, 8), range(2, LENGTH - 1, 5)))
    columns = measured.rows[TABLE.name]
    assert list(zip(*(columns[name] for name in ("layer", "sequence", "query")), strict=True)) == product
    columns = measured.rows[UNMODIFIED_TABLE.name]
    assert list(zip(columns["sequence"], columns["query"], strict=True)) == [row[1:] for row in product if row[0] == 0]


def test_queries_and_batches_change_no_loss() -> None:
    model, ids = tiny("mistral"), tokens(5, LENGTH)
    every = _losses(_measure(model, ids, batch=3), 5)
    some = _losses(_measure(model, ids, batch=1, queries=QueryRange(start=4, stop=18, step=3)), 5, 5)
    np.testing.assert_allclose(some, every[..., 4:18:3], rtol=1e-5, atol=1e-5)


def test_the_last_position_predicts_nothing_and_has_no_row() -> None:
    queries = _measure(tiny("llama"), tokens(2, LENGTH)).rows[TABLE.name]["query"]
    assert queries.max() == LENGTH - 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@every_family
def test_checks_hold_in_every_dtype(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(2, LENGTH), routing="shared_sigmoid").checks
    assert 0 <= checks["max_value_map_residual"] <= shared_routing.VALUE_MAP_TOLERANCE[dtype] / 5
    assert checks["max_unchanged_difference_nats"] <= shared_routing.UNCHANGED_TOLERANCE_NATS[dtype] / 5


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("shared_route", lambda inputs, credit: shared_route(inputs, credit).flip(1)),  # other heads' values
        ("shared_route", softmax_route),  # nothing shared
        ("own_by_blocks", lambda definition: lambda inputs, credit: 1.1 * softmax_route(inputs, credit)),
    ],
)
def test_a_wrong_route_fails_the_shard(name: str, wrong: Any, monkeypatch) -> None:
    monkeypatch.setattr(shared_routing, name, wrong)
    with pytest.raises(KeyholeError) as failure:
        _measure(tiny("llama", dtype=torch.float32), tokens(2, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_loss_that_is_not_a_number_fails_the_shard() -> None:
    model = tiny("llama", dtype=torch.float32)
    ready = loaded(model)
    model.lm_head.weight.fill_(torch.nan)
    parameters = SharedRoutingParameters(sequences=1, length=LENGTH)
    with pytest.raises(KeyholeError, match="loss") as failure:
        shared_routing.measure(ready, parameters, tokens(1, LENGTH).numpy(), 0, OtherModels())
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_layer_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(KeyholeError, match="layer 5; the model has 2") as failure:
        _measure(tiny("llama"), tokens(1, LENGTH), layers=[0, 5])
    assert failure.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"layers": [2, 1]}, "ascend"),
        ({"layers": [1, 1]}, "ascend"),
        ({"layers": []}, "at least 1"),
        ({"bias": -3.0}, "belongs to sigmoid routing"),
        ({"length": 40, "queries": {"start": 39}}, "predicts nothing"),
        ({"routing": "sigmoid", "bias": float("inf")}, "finite"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(wrong: dict, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        SharedRoutingParameters.model_validate(wrong)
