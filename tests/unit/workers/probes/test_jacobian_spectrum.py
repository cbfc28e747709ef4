"""Every spectrum against Jacobians by automatic differentiation and NumPy's SVD, on tiny models of each family."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config, PreTrainedModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import QueryRange
from services.contracts.probes.jacobian_spectrum import MODE_TABLE, TABLE, JacobianSpectrumParameters, Site
from tests.unit.workers import families
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, WINDOW, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.attention import jacobian, seam
from workers.attention.inputs import AttentionInputs, LayerAttention
from workers.probes import jacobian_spectrum, passes
from workers.probes.measurement import Measurement

LENGTH = 21
KEY = ("layer", "head", "sequence", "query")
EVERY_QUERY = QueryRange(start=0, step=1)


def _parameters(sequences: int = 2, length: int = LENGTH, **others) -> JacobianSpectrumParameters:
    return JacobianSpectrumParameters(**{"sequences": sequences, "length": length, "queries": EVERY_QUERY, **others})


def _measure(model: PreTrainedModel, ids: Tensor, *, first: int = 0, **others) -> Measurement:
    parameters = _parameters(*ids.shape, **others)
    return passes.measure(jacobian_spectrum.PROBE, loaded(model), parameters, ids.numpy().astype(np.int32), first)


def _by_site(measurement: Measurement, column: str, sequences: int = 2, queries: int = LENGTH) -> np.ndarray:
    return measurement.rows[TABLE.name][column].reshape(LAYERS, HEADS, sequences, queries)


@dataclass
class _Layer:
    """What transformers hands to the attention of a layer, and what comes back."""

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor  # [batch, query, key]
    scaling: float
    softcap: float | None
    sinks: Tensor | None

    def row(self, query: Tensor, batch: int, head: int, position: int) -> Tensor:
        """y of one head and position as a function of its query."""
        groups = self.query.shape[1] // self.key.shape[1]
        keys = self.key[batch, head // groups][self.visible[batch, position]]
        values = self.value[batch, head // groups][self.visible[batch, position]]
        scores = keys @ query * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        weights = scores.exp()
        total = weights.sum() + (0 if self.sinks is None else self.sinks[head].exp())
        return (weights / total) @ values


def _layers(model: PreTrainedModel, ids: Tensor) -> list[_Layer]:
    """The layers' queries, keys and values, with rows written out from positions and the window."""
    caught: list[LayerAttention] = []

    class Catcher:
        def forward(self, attention: LayerAttention) -> None:
            caught.append(attention)

        def backward(self, attention: LayerAttention, delta: Tensor) -> None: ...

    seam.attach(model)
    with torch.no_grad(), seam.observing(model, [Catcher()]):
        model(ids, use_cache=False)
    kinds = getattr(model.config, "layer_types", None) or (
        ["sliding_attention"] * LAYERS if model.config.model_type == "mistral" else ["full_attention"] * LAYERS
    )
    distance = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    found = []
    for attention, kind in zip(caught, kinds, strict=True):
        window = WINDOW if kind == "sliding_attention" else ids.shape[1]
        visible = ((distance >= 0) & (distance < window)).expand(len(ids), -1, -1)
        query, key, value = (tensor.double() for tensor in (attention.query, attention.key, attention.value))
        sinks = None if attention.sinks is None else attention.sinks.double()
        found.append(_Layer(query, key, value, visible, attention.scaling, attention.softcap, sinks))
    return found


def _expected(layer: _Layer, batch: int, head: int, position: int) -> dict[str, float]:
    """The statistics of one row from the SVD of its Jacobian, each by its definition."""
    j = torch.autograd.functional.jacobian(
        lambda query: layer.row(query, batch, head, position), layer.query[batch, head, position]
    )
    assert isinstance(j, Tensor)
    sigma = np.linalg.svd(j.numpy(), compute_uv=False)
    scale = layer.scaling * float(layer.key.norm(dim=-1).max() * layer.value.norm(dim=-1).max())
    if sigma[0] < 1e-14 * scale:  # nothing but rounding: a row of one key
        return dict.fromkeys(("effective_rank", "effective_rank_sigma", "participation_ratio"), np.nan) | {
            "modes_above_1e_2": 0,
            "modes_above_1e_3": 0,
        }
    squares = sigma[sigma > 0] ** 2 / (sigma**2).sum()
    shares = sigma[sigma > 0] / sigma.sum()
    return {
        "effective_rank": np.exp(-(squares * np.log(squares)).sum()),
        "effective_rank_sigma": np.exp(-(shares * np.log(shares)).sum()),
        "participation_ratio": (sigma**2).sum() ** 2 / (sigma**4).sum(),
        "modes_above_1e_2": (sigma / sigma[0] > 1e-2).sum(),
        "modes_above_1e_3": (sigma / sigma[0] > 1e-3).sum(),
        "sigma_max": sigma[0],
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_statistic_equals_that_of_the_autograd_jacobian(family: str) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _measure(model, ids)
    layers = _layers(model, ids)
    for layer, head, sequence, query in np.ndindex(LAYERS, HEADS, 2, LENGTH):
        if query % 4 in (1, 2) and query > 3:  # half of the rows are enough, and every short one
            continue
        for name, value in _expected(layers[layer], sequence, head, query).items():
            found = _by_site(measured, name)[layer, head, sequence, query]
            # float32 storage, and σ below 3e-8 of the largest is rounding
            assert found == pytest.approx(value, rel=3e-6, nan_ok=True), (name, layer, head, sequence, query)


def test_values_wider_than_keys_are_measured_and_keys_wider_than_values() -> None:
    """deepseek_v3 has d_value ≠ d_key: the spectrum has as many modes as the smaller has components."""
    for d_value in (6, 20):
        config = DeepseekV3Config(
            vocab_size=families.VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=16,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            kv_lora_rank=8,
            q_lora_rank=None,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=d_value,
            first_k_dense_replace=LAYERS,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(FAMILIES, "deepseek_v3", lambda config=config: config)
            model, ids = tiny("deepseek_v3"), tokens(2, LENGTH)
        measured = _measure(model, ids)
        assert measured.rows[MODE_TABLE.name]["mode"].max() == min(d_value, 12) - 1
        layers = _layers(model, ids)
        for layer, head, query in np.ndindex(LAYERS, HEADS, LENGTH):
            for name, value in _expected(layers[layer], 0, head, query).items():
                found = _by_site(measured, name)[layer, head, 0, query]
                assert found == pytest.approx(value, rel=3e-6, nan_ok=True), (name, layer, head, query)


@pytest.mark.parametrize("family", FAMILIES)
def test_jacobians_agree_with_autograd_to_twelve_digits_and_short_rows_have_low_rank(family: str) -> None:
    checks = _measure(tiny(family), tokens(2, LENGTH), check_queries=LENGTH).checks
    assert 0 <= checks["max_jacobian_error"] <= jacobian_spectrum.JACOBIAN_TOLERANCE
    assert 0 <= checks["max_sigma_beyond_rank"] <= jacobian_spectrum.BEYOND_RANK_TOLERANCE
    assert 0 <= checks["max_output_error"] <= jacobian_spectrum.OUTPUT_TOLERANCE[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checks_hold_whatever_the_models_dtype(dtype: torch.dtype) -> None:
    for family in ("llama", "gemma2", "gpt_oss"):
        assert _measure(tiny(family, dtype=dtype), tokens(2, LENGTH)).checks["max_output_error"] > 0


def test_a_row_of_one_key_has_no_jacobian_unless_a_sink_takes_weight_too() -> None:
    ids = tokens(2, LENGTH)
    for family, sinks in (("llama", False), ("gemma2", False), ("gpt_oss", True)):
        measured = _measure(tiny(family, dtype=torch.float32), ids)
        sigma, rank = _by_site(measured, "sigma_max")[..., 0], _by_site(measured, "effective_rank")[..., 0]
        modes = _by_site(measured, "modes_above_1e_3")[..., 0]
        if sinks:
            assert (sigma > 0).all() and np.allclose(rank, 1) and (modes == 1).all()
        else:
            assert (sigma == 0).all() and np.isnan(rank).all() and (modes == 0).all()


def test_ranks_lie_between_one_and_what_the_row_allows() -> None:
    measured = _measure(tiny("qwen2"), tokens(2, LENGTH))
    largest = np.minimum(np.arange(1, LENGTH), 8)  # d = 8, and one less than the keys of the row
    for name in ("effective_rank", "effective_rank_sigma", "participation_ratio", "modes_above_1e_3"):
        found = _by_site(measured, name)[..., 1:]
        assert (found >= 1 - 1e-6).all() and (found <= largest + 1e-6).all()
    squared, plain = (_by_site(measured, name)[..., 1:] for name in ("effective_rank", "effective_rank_sigma"))
    assert (squared <= plain + 1e-6).all()  # squaring takes from the small shares
    assert (_by_site(measured, "modes_above_1e_2") <= _by_site(measured, "modes_above_1e_3")).all()


def test_a_row_with_nearly_all_weight_on_one_key_keeps_its_digits() -> None:
    """The rest of the weight is 1e-9: formed as Vᵀ diag(a) K − y k̄ᵀ, J would keep 7 digits."""
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, 1, 12, 8, generator=generator, dtype=torch.float64)
    query = key[:, :, 5:6].expand(1, 1, 12, 8)
    scaling = 20.0 / float(key[0, 0, 5].square().sum() - (key[0, 0] @ key[0, 0, 5]).sort().values[-2])
    inputs = AttentionInputs(0, query, key, value, scaling, mask=None, softcap=None, sinks=None)
    found = jacobian.jacobians(jacobian.of_head(inputs, 0, 0), range(8, 12))
    assert (1 - found.top_weight).max() < 1e-8
    exact = [tensor.numpy()[0, 0].astype(np.longdouble) for tensor in (key, value)]
    for number, position in enumerate(range(8, 12)):
        k, v = (tensor[: position + 1] - tensor[5] for tensor in exact)  # J does not change when both are shifted
        weights = np.exp(np.longdouble(scaling) * (k @ (exact[0][5])))
        weights /= weights.sum()
        expected = (v * weights[:, None]).T @ k - np.outer(weights @ v, weights @ k)
        error = np.linalg.norm((found.unscaled[number].numpy() - expected).astype(float))
        assert error < 1e-12 * np.linalg.norm(expected.astype(float))


@pytest.mark.parametrize("wrong", [{"scaling": 0.5}, {"softcap": 1.0}, {"sinks": torch.ones(HEADS).double()}])
def test_rows_that_are_not_the_models_fail_the_shard(wrong: dict) -> None:
    collect = jacobian_spectrum.SpectrumCollector

    class Mistaken(collect):
        def forward(self, attention: LayerAttention) -> None:
            super().forward(replace(attention, **wrong))

    ids = tokens(1, LENGTH)
    with pytest.raises(KeyholeError, match="max_output_error") as failure:
        passes.measure(
            replace(jacobian_spectrum.PROBE, collect=Mistaken), loaded(tiny("llama")), _parameters(1), ids.numpy(), 0
        )
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


def test_a_wrong_jacobian_fails_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    right = jacobian.jacobians

    def wrong(*arguments) -> jacobian.Jacobians:
        found = right(*arguments)
        return replace(found, unscaled=found.unscaled * (1 + 1e-11))

    monkeypatch.setattr(jacobian, "jacobians", wrong)
    with pytest.raises(KeyholeError, match="max_jacobian_error"):
        _measure(tiny("llama"), tokens(1, LENGTH))


def test_a_model_that_is_not_finite_fails_the_shard() -> None:
    ready = loaded(tiny("llama", dtype=torch.float32))
    ready.model.model.layers[0].self_attn.v_proj.weight.fill_(torch.nan)
    with pytest.raises(KeyholeError, match="not finite") as failure:
        passes.measure(jacobian_spectrum.PROBE, ready, _parameters(1), tokens(1, LENGTH).numpy(), 0)
    assert failure.value.code == ErrorCode.SELF_CHECK_FAILED


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_oss"])
def test_results_depend_neither_on_blocks_nor_on_batches_nor_on_threads(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = tiny(family), tokens(3, LENGTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = _measure(model, ids, batch=1)
        monkeypatch.setattr(jacobian.rows, "CPU_BLOCK", 300)  # 4 queries
        monkeypatch.setattr(jacobian, "CPU_WEIGHTED", 300)  # 1 or 2 of them
        torch.set_num_threads(3)
        parts = _measure(model, ids, batch=2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    for table, columns in whole.rows.items():
        for name, values in columns.items():
            np.testing.assert_allclose(
                parts.rows[table][name].astype(float), values.astype(float), rtol=1e-5, atol=3e-7, err_msg=name
            )


def test_modes_are_the_mean_and_the_quantiles_over_a_sequences_queries() -> None:
    model, ids = tiny("qwen3"), tokens(2, LENGTH)
    found = _measure(model, ids).rows[MODE_TABLE.name]
    layers = _layers(model, ids)
    chosen = {name: values.reshape(LAYERS, HEADS, 2, 8)[1, 2, 1] for name, values in found.items()}
    spectra = []
    for query in range(1, LENGTH):  # the first has no Jacobian
        j = torch.autograd.functional.jacobian(
            lambda q, query=query: layers[1].row(q, 1, 2, query), layers[1].query[1, 2, query]
        )
        assert isinstance(j, Tensor)
        sigma = np.linalg.svd(j.numpy(), compute_uv=False)
        spectra.append(sigma / sigma[0])
    assert (chosen["queries"] == LENGTH - 1).all()
    assert chosen["mode"].tolist() == list(range(8))
    np.testing.assert_allclose(chosen["mean"], np.mean(spectra, 0), rtol=1e-5, atol=1e-7)
    for name, share in {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}.items():
        np.testing.assert_allclose(chosen[name], np.quantile(spectra, share, axis=0), rtol=1e-5, atol=1e-7)


def test_rows_of_chosen_sites_are_sorted_and_typed_as_the_tables_say() -> None:
    model, ids = tiny("llama", dtype=torch.float32), tokens(2, LENGTH)
    sites = [Site(layer=1, head=3), Site(layer=0, head=2), Site(layer=1, head=0)]
    queries = QueryRange(start=2, step=5)
    some = _measure(model, ids, sites=sites, queries=queries, first=7)
    types = {"int2": np.int16, "int4": np.int32, "float4": np.float32}
    for table in (TABLE, MODE_TABLE):
        columns = some.rows[table.name]
        assert ["job_id", *columns] == [column.name for column in table.columns]
        assert all(columns[column.name].dtype == types[column.type] for column in table.columns[1:])
        keys = list(zip(*(columns[name] for name in table.key), strict=True))
        assert keys == sorted(keys)
        assert sorted(set(zip(columns["layer"], columns["head"], strict=True))) == [(0, 2), (1, 0), (1, 3)]
        assert set(columns["sequence"]) == {7, 8}
    every = _by_site(_measure(model, ids), "effective_rank")[[0, 1, 1], [2, 0, 3], :, 2::5]
    np.testing.assert_allclose(some.rows[TABLE.name]["effective_rank"], every.reshape(-1), rtol=1e-5)


def test_a_site_that_the_model_lacks_is_named_with_what_it_has() -> None:
    for site in (Site(layer=LAYERS, head=0), Site(layer=0, head=HEADS)):
        with pytest.raises(KeyholeError, match=f"no layer {site.layer}, head {site.head}") as failure:
            _measure(tiny("llama"), tokens(1, LENGTH), sites=[Site(layer=0, head=0), site])
        assert failure.value.code == ErrorCode.INVALID_REQUEST
        assert f"layers 0 to {LAYERS - 1}" in failure.value.hint and f"heads 0 to {HEADS - 1}" in failure.value.hint


def test_a_site_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 1, head 0 more than once"):
        JacobianSpectrumParameters(sites=[Site(layer=1, head=0), Site(layer=1, head=0)])


def test_rows_of_equal_values_have_no_jacobian_and_fail_nothing() -> None:
    """Equal tokens have equal values in the first layer: whatever the query, y is the same."""
    found = _measure(tiny("llama", dtype=torch.float32), torch.full((1, LENGTH), 7))
    assert np.isnan(_by_site(found, "effective_rank", 1)[0]).all()
    assert (_by_site(found, "modes_above_1e_2", 1)[0] == 0).all()


def test_a_model_whose_values_are_zero_fails_nothing() -> None:
    model = tiny("llama", dtype=torch.float32)
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data.zero_()
    found = _measure(model, tokens(1, LENGTH))
    assert np.isnan(_by_site(found, "effective_rank", 1)).all()
