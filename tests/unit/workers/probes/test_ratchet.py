"""Every predicted change against an actual step of gradient descent, by autograd in float64, on each family."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import Credit, QueryRange
from services.contracts.probes.ratchet import BAND_TABLE, BANDS, TABLE, RatchetParameters
from tests.unit.workers import reference, steps
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, VOCABULARY, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.attention import ratchet, rows
from workers.probes import passes
from workers.probes import ratchet as probe
from workers.probes.measurement import Measurement

LENGTH = 23
SOME = QueryRange(start=2, step=4)  # the last one is the last position, which has no credit
KEY = ("layer", "head", "sequence", "query")


def _measure(
    model, ids, *, credit: Credit = "sequence", batch: int = 2, queries: QueryRange = SOME, first: int = 0
) -> Measurement:
    sequences, length = ids.shape
    parameters = RatchetParameters(sequences=sequences, length=length, batch=batch, credit=credit, queries=queries)
    return passes.measure(probe.PROBE, loaded(model), parameters, ids.numpy().astype(np.int32), first)


def _rows(measurement: Measurement) -> list[SimpleNamespace]:
    columns = measurement.rows[TABLE.name]
    return [SimpleNamespace(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


class _Stepped:
    """Steps taken on the reference model: A, ΔA and Δs of every row that is asked for."""

    def __init__(self, model, ids, credit: Credit) -> None:
        self._recording, self._calls = steps.record(model, ids)
        by_credit = {"sequence": reference.sequence_credit, "own_token": reference.own_token_credit}
        self._deltas = by_credit[credit](self._recording, ids)

    def row(self, layer: int, head: int, sequence: int, query: int) -> SimpleNamespace:
        found, delta = self._recording.layers[layer], self._deltas[layer]
        where = (sequence, head, query)
        pattern, visible, value, row = found.pattern[where], found.visible[where], found.value[where[:2]], delta[where]
        return SimpleNamespace(
            pattern=pattern,
            visible=visible,
            delta=float(row.norm()),
            advantage=steps.advantages(pattern, value, row),
            change=steps.change_of_advantages(self._calls[layer], found, delta, where),
            step=steps.step_of_scores(pattern, visible, value, row),
        )


@pytest.mark.parametrize(
    ("family", "credit"),
    [*((family, "sequence") for family in FAMILIES), ("llama", "own_token"), ("gpt_oss", "own_token")],
)
def test_every_change_is_that_of_an_actual_step(family: str, credit: Credit) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    found = _rows(_measure(model, ids, credit=credit))
    stepped = _Stepped(model, ids, credit)
    assert len(found) == LAYERS * HEADS * 2 * 6
    for row in found:
        made = stepped.row(row.layer, row.head, row.sequence, row.query)
        order = made.pattern.argsort(descending=True)
        assert (row.top_key, row.runner_up) == tuple(order[:2].tolist())
        one, two = (made.pattern[place] for place in order[:2])
        near: dict[str, Any] = {
            "rel": 1e-4,
            "abs": 1e-4,
        }  # rotary and norm layers compute in float32 in a float64 model
        assert row.log_odds_runner_up == pytest.approx(float((one / two).log()), **near)
        assert row.log_odds_rest == pytest.approx(float((one / (1 - one)).log()), **near)
        if row.query == LENGTH - 1:
            assert row.log10_delta == -np.inf
            assert np.isnan([row.gain_top, row.gain_runner_up, row.odds_growth_runner_up, row.odds_growth_rest]).all()
            continue
        size = 10.0**row.log10_delta
        assert size == pytest.approx(made.delta, rel=1e-4)
        unit = size**2 * 10.0**row.log10_x_squared
        for place, gain, advantage in (
            (row.top_key, row.gain_top, row.advantage_top),
            (row.runner_up, row.gain_runner_up, row.advantage_runner_up),
        ):
            assert gain == pytest.approx(float(made.change[place]) / unit, **near)
            assert advantage == pytest.approx(float(made.advantage[place]) / size, **near)
        growth = made.step[row.top_key] - made.step[row.runner_up]
        assert row.odds_growth_runner_up == pytest.approx(float(growth) / size, **near)
        assert row.odds_growth_rest == pytest.approx(_growth_against_the_rest(made, row.top_key) / size, **near)


def _growth_against_the_rest(made: SimpleNamespace, top: int) -> float:
    """Derivative of log(a_top / (1 − a_top)) along Δs, by a central difference."""
    keys = made.visible.nonzero().flatten().tolist()
    scores, sink = made.pattern.clamp_min(1e-300).log(), (1 - made.pattern.sum()).clamp_min(1e-300)
    others = [key for key in keys if key != top]
    length = 1e-4 / float(made.step.abs().max())
    ahead, behind = (steps.log_odds(scores + sign * length * made.step, sink, top, others) for sign in (1.0, -1.0))
    return float(ahead - behind) / (2 * length)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_bands_count_what_actual_steps_do_to_every_source(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _measure(model, ids).rows
    stepped = _Stepped(model, ids, "sequence")
    expected = np.zeros((LAYERS, HEADS, 2, len(BANDS), 5))
    for row in _rows(_measure(model, ids)):
        if row.query == LENGTH - 1:
            continue
        made = stepped.row(row.layer, row.head, row.sequence, row.query)
        gain = made.change / (made.delta**2 * 10.0**row.log10_x_squared)
        for key in made.visible.nonzero().flatten().tolist():
            weight = float(made.pattern[key])
            band = next(index for index, lower in enumerate(BANDS) if weight >= lower)
            expected[row.layer, row.head, row.sequence, band] += [
                1,
                float(gain[key] > 0),
                float(made.step[key] > 0),
                float(gain[key]),
                float(made.step[key].abs()) / made.delta,
            ]
    found = measured[BAND_TABLE.name]
    expected = expected.reshape(-1, 5)
    assert found["band"].tolist() == list(range(len(BANDS))) * (LAYERS * HEADS * 2)
    for column, name in enumerate(("sources", "gain_positive", "step_positive")):
        np.testing.assert_array_equal(found[name], expected[:, column])
    with np.errstate(invalid="ignore"):
        means = expected[:, 3:] / expected[:, :1]
    np.testing.assert_allclose(found["mean_gain"], means[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["mean_abs_step"], means[:, 1], rtol=1e-4, atol=1e-5)


def test_a_step_on_the_bias_of_v_shifts_all_keys_alike_and_only_where_a_sink_takes_weight() -> None:
    for family, sink in (("qwen2", False), ("gpt_oss", True)):
        model, ids = tiny(family), tokens(1, LENGTH)
        recording, calls = steps.record(model, ids)
        delta = reference.sequence_credit(recording, ids)[1]
        where = (0, 2, 11)
        without = steps.change_of_advantages(calls[1], recording.layers[1], delta, where)
        both = steps.change_of_advantages(calls[1], recording.layers[1], delta, where, bias=True)
        mass = recording.layers[1].pattern[where].sum()
        unit = delta[where].square().sum()
        assert (1 - mass > 1e-3) == sink
        shift = torch.full_like(both, float(mass * (1 - mass)))
        torch.testing.assert_close((both - without) / unit, shift, atol=1e-9, rtol=1e-6)


def test_orthogonal_inputs_give_the_article_s_difference_of_weights() -> None:
    generator = torch.Generator().manual_seed(3)
    x = 1.7 * torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64)).Q[None]
    weights = torch.randn(1, 2, 4, 9, generator=generator, dtype=torch.float64).softmax(-1)
    found = ratchet.gains(weights, x, x.norm(dim=-1), sums_to_one=True)
    torch.testing.assert_close(found.gain, weights - weights.square().sum(-1, keepdim=True))
    torch.testing.assert_close(found.x_squared, torch.full((1, 2, 4), 1.7**2, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(0.1, 1.0), st.sampled_from([0.1, 1.0, 30.0]))
def test_gains_weighted_by_attention_add_up_and_are_bounded(
    seed: int, keys: int, mass: float, sharpness: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, keys, 5, generator=generator, dtype=torch.float64)
    weights = mass * (sharpness * torch.randn(1, 1, 1, keys, generator=generator, dtype=torch.float64)).softmax(-1)
    found = ratchet.gains(weights, x, x.norm(dim=-1), sums_to_one=False)
    torch.testing.assert_close((weights * found.gain).sum(-1), found.surplus, atol=1e-12, rtol=1e-9)
    bound = 1 + x.norm(dim=-1)[:, None, None] / found.x_squared.sqrt()[..., None]
    assert bool((found.gain.abs() <= bound + 1e-9).all())


def test_signs_survive_float32_where_the_top_key_holds_nearly_all() -> None:
    """Scores ten times as far apart: top weights that are 1 in float32, whose gain is below its last digit."""

    def sharp(dtype: torch.dtype) -> list[SimpleNamespace]:
        model = tiny("llama", dtype=dtype)
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(10)
        return _rows(_measure(model, tokens(2, LENGTH)))

    compared = 0
    for found, exact in zip(sharp(torch.float32), sharp(torch.float64), strict=True):
        same = (found.top_key, found.runner_up) == (exact.top_key, exact.runner_up)
        if same and 16 < exact.log_odds_rest < 60 and np.isfinite(exact.log10_delta):
            assert np.sign(found.gain_top) == np.sign(exact.gain_top) != 0
            assert np.sign(found.odds_growth_runner_up) == np.sign(exact.odds_growth_runner_up) != 0
            compared += 1
    assert compared > 10


def test_a_query_with_one_key_has_no_runner_up_and_no_change() -> None:
    for family, rest in (("llama", np.inf), ("gpt_oss", None)):
        measured = _measure(tiny(family), tokens(1, LENGTH), queries=QueryRange(start=0, stop=1))
        for row in _rows(measured):
            assert (row.top_key, row.runner_up, row.log_odds_runner_up) == (0, -1, np.inf)
            assert row.log_odds_rest == rest if rest else np.isfinite(row.log_odds_rest)  # the sink is the rest
            assert np.isnan([row.gain_top, row.advantage_top, row.odds_growth_runner_up, row.odds_growth_rest]).all()
        assert measured.rows[BAND_TABLE.name]["sources"].sum() == 0


@pytest.mark.parametrize("block", [1, 1000])
def test_results_do_not_depend_on_blocks_or_batches(block: int, monkeypatch) -> None:
    model, ids = tiny("mistral"), tokens(3, LENGTH)
    whole = _measure(model, ids, batch=3).rows
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    for table, columns in _measure(model, ids, batch=2).rows.items():
        for name, values in columns.items():
            np.testing.assert_allclose(values, whole[table][name], rtol=1e-5, atol=1e-6)


def test_rows_are_sorted_and_typed_as_the_tables_say() -> None:
    measured = _measure(tiny("llama", dtype=torch.float32), tokens(2, LENGTH), first=7)
    types = {"int2": np.int16, "int4": np.int32, "int8": np.int64, "float4": np.float32}
    for table in (TABLE, BAND_TABLE):
        columns = measured.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
    columns = measured.rows[TABLE.name]
    keys = list(zip(*(columns[name] for name in KEY), strict=True))
    assert keys == list(itertools.product(range(LAYERS), range(HEADS), (7, 8), range(2, LENGTH, 4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gpt_oss", "phi3"])
def test_departures_stay_well_within_what_is_allowed(family: str, dtype: torch.dtype) -> None:
    checks = _measure(tiny(family, dtype=dtype), tokens(2, LENGTH)).checks
    assert 0 <= checks["max_gain_residual"] < probe.GAIN_TOLERANCE[dtype] / 10
    assert 0 <= checks["max_value_residual"] < probe.VALUE_TOLERANCE[dtype] / 5


def test_an_input_that_is_not_what_v_acts_on_fails_the_job(monkeypatch) -> None:
    model, ids = tiny("llama", dtype=torch.float32), tokens(2, LENGTH)
    ready = loaded(model)
    monkeypatch.setattr(model.model.layers[1].self_attn.v_proj, "forward", lambda x: x[..., :16] * 1.01)
    parameters = RatchetParameters(sequences=2, length=LENGTH, queries=SOME)
    with pytest.raises(KeyholeError, match="values depart") as failure:
        passes.measure(probe.PROBE, ready, parameters, ids.numpy(), 0)
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_gains_that_do_not_cancel_fail_the_job(monkeypatch) -> None:
    right = ratchet.gains

    def wrong(weights, *others, **named):
        return right(weights.roll(1, 1), *others, **named)  # another head's

    monkeypatch.setattr(ratchet, "gains", wrong)
    with pytest.raises(KeyholeError, match="Σ a ΔA = 0") as failure:
        _measure(tiny("llama", dtype=torch.float32), tokens(1, LENGTH))
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_values_that_are_no_matrix_times_x_are_refused() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
    }
    ids: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    latent = transformers.DeepseekV3Config(
        **sizes, **ids, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, v_head_dim=6,
        qk_nope_head_dim=8, qk_rope_head_dim=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=16,
    )  # fmt: skip
    clipped = transformers.OlmoConfig(**sizes, **ids, num_attention_heads=4, clip_qkv=0.5)
    for config, reason in ((latent, "latent attention"), (clipped, "clipped")):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with pytest.raises(KeyholeError, match=reason) as refused:
            _measure(model, tokens(1, LENGTH))
        assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED


def test_a_padding_token_without_a_value_fails_nothing() -> None:
    model = tiny("llama", dtype=torch.float32)
    model.model.embed_tokens.weight.data[7] = 0
    ids = tokens(1, LENGTH)
    ids[0, ::2] = 7
    assert _measure(model, ids).checks["max_value_residual"] <= 1e-5
