"""What a definition makes of a model's attention, against the formulas with every head's whole pattern written out."""

import copy
import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.training.variants import QkNorm, SharedSigmoid, SharedSoftmax, SigmaReparam, Sigmoid, Variant
from tests.unit.workers.families import FAMILIES, LAYERS, tiny, tokens
from tests.unit.workers.routing_reference import reference_logits
from workers.attention import rows, seam
from workers.attention.inputs import LayerAttention
from workers.attention.projections import projections
from workers.models import load_model
from workers.training.variants import install

LENGTH = 19
DEFINITIONS = {
    "qk_norm": AttentionDefinition(qk_norm=True),
    "qk_norm with a scale": AttentionDefinition(qk_norm=True, scale=0.9),
    "scale": AttentionDefinition(scale=0.31),
    "sigmoid": AttentionDefinition(routing="sigmoid"),
    "sigmoid with a bias": AttentionDefinition(routing="sigmoid", sigmoid_bias=-1.3),
    "shared_softmax": AttentionDefinition(routing="shared_softmax"),
    "shared_sigmoid": AttentionDefinition(routing="shared_sigmoid"),
    "all": AttentionDefinition(qk_norm=True, scale=0.9, routing="shared_sigmoid", sigmoid_bias=-2.0),
}
every_definition = pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
# rotary and norm layers compute in float32 inside a float64 model
CLOSE = {"rtol": 3e-5, "atol": 3e-5}


class Notes:
    def __init__(self) -> None:
        self.seen: list[LayerAttention] = []

    def forward(self, attention: LayerAttention) -> None:
        self.seen.append(attention)

    def backward(self, attention: LayerAttention, delta: Tensor) -> None: ...


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of queries, also in rows as short as these."""
    monkeypatch.setattr(rows, "CPU_BLOCK", 300)


def _defined(family: str, definition: AttentionDefinition, **options) -> PreTrainedModel:
    model = tiny(family, **options)
    seam.attach(model)
    seam.define(model, definition)
    return model


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model(ids, use_cache=False).logits


def _expected(model: PreTrainedModel, ids: Tensor, definition: AttentionDefinition) -> Tensor:
    routing = (definition.routing, definition.sigmoid_bias)
    layers = dict.fromkeys(range(LAYERS), routing)
    return reference_logits(model, ids, layers, qk_norm=definition.qk_norm, scale=definition.scale)


@every_definition
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_formulas(family: str, definition: AttentionDefinition) -> None:
    model, ids = _defined(family, definition), tokens(2, LENGTH)
    with torch.no_grad():
        expected = _expected(model, ids, definition)
        torch.testing.assert_close(_logits(model, ids), expected, **CLOSE)
        with seam.observing(model):  # the model's own, where no route is given
            torch.testing.assert_close(_logits(model, ids), expected, **CLOSE)
        seam.define(model, AttentionDefinition())
        assert (_logits(model, ids) - expected).abs().max() > 1e-3  # the definition does something


@every_definition
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gpt_oss"])
def test_gradients_of_every_weight_equal_those_of_the_formulas(family: str, definition: AttentionDefinition) -> None:
    model, ids = _defined(family, definition).requires_grad_(), tokens(2, LENGTH)
    weights = dict(model.named_parameters())
    asked = {"allow_unused": True, "materialize_grads": True}  # sigmoid rows have no use for sinks
    found = torch.autograd.grad(_logits(model, ids).logsumexp(-1).sum(), list(weights.values()), **asked)
    target = _expected(model, ids, definition).logsumexp(-1).sum()
    for name, one, other in zip(
        weights, found, torch.autograd.grad(target, list(weights.values()), **asked), strict=True
    ):
        apart = (one - other).norm() / other.norm().clamp_min(1e-6)
        assert apart < 1e-4, name


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "qwen3"])
def test_observers_see_normalised_vectors_and_the_scale_in_force(family: str) -> None:
    model, notes = _defined(family, AttentionDefinition(qk_norm=True, scale=0.25)), Notes()
    with torch.no_grad(), seam.observing(model, [notes]):
        _logits(model, tokens(2, LENGTH))
    assert len(notes.seen) == LAYERS
    for attention in notes.seen:
        assert attention.scaling == 0.25
        for each in (attention.query, attention.key):
            # 10⁻⁶ beside the mean square of a vector of about unit size
            torch.testing.assert_close(each.square().mean(-1), torch.ones(each.shape[:-1]).double(), rtol=1e-4, atol=0)
        found = projections(attention.module, attention.query.shape[1], attention.key.shape[1])
        assert found.query is not None and found.query.then[-1] == "norm"


def test_a_query_gradient_gets_the_normalised_query_and_its_gradient_goes_on_through_the_norm() -> None:
    model, ids = _defined("llama", AttentionDefinition(qk_norm=True)).requires_grad_(), tokens(1, LENGTH)
    weight = model.model.layers[0].self_attn.q_proj.weight

    def doubled(inputs) -> Tensor:
        assert torch.allclose(inputs.query.square().mean(-1), torch.ones(()).double(), atol=1e-4)
        query = inputs.query
        return query.detach() + 2 * (query - query.detach()) if inputs.layer == 0 else query

    plain = torch.autograd.grad(_logits(model, ids).square().sum(), weight)[0]
    with seam.observing(model, query_gradient=doubled):
        changed = torch.autograd.grad(_logits(model, ids).square().sum(), weight)[0]
    torch.testing.assert_close(changed, 2 * plain)


def test_a_definition_is_a_models_own_goes_with_its_copies_and_ends_with_it() -> None:
    model, other, ids = (
        _defined("llama", DEFINITIONS["sigmoid"]),
        _defined("llama", AttentionDefinition()),
        tokens(1, 9),
    )
    with torch.no_grad():
        assert (_logits(model, ids) - _logits(other, ids)).abs().max() > 1e-3
        torch.testing.assert_close(_logits(copy.deepcopy(model), ids), _logits(model, ids), rtol=0, atol=0)
        seam.define(model, AttentionDefinition())
        torch.testing.assert_close(_logits(model, ids), _logits(other, ids), rtol=0, atol=0)
    assert seam.defined(other).plain
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("own", ["sigmoid", "shared_softmax"])
def test_own_token_credit_is_refused_where_rows_are_no_softmax_of_a_heads_own_scores(own: str) -> None:
    model = _defined("llama", AttentionDefinition(routing=own))
    not_defined = pytest.raises(KeyholeError, match="Credit 'own_token' is not defined")
    with not_defined as refused, seam.observing(model, credit="own_token"):
        _logits(model, tokens(1, 9))
    assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED


VARIANTS: dict[str, list[Variant]] = {
    "qk_norm": [QkNorm(scale=0.7)],
    "sigmoid": [Sigmoid(bias=-1.0)],
    "shared_sigmoid": [SharedSigmoid()],
    "shared_softmax": [SharedSoftmax()],
    "qk_norm+sigma_reparam+sigmoid": [QkNorm(), SigmaReparam(), Sigmoid()],
}


@pytest.mark.parametrize("variants", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_stored_checkpoint_gives_the_logits_it_gave_in_training(
    family: str, variants: list[Variant], tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, model_roots=(tmp_path / "models",))
    model, ids = tiny(family, dtype=torch.float32).requires_grad_(), tokens(2, LENGTH)
    seam.attach(model)
    installed = install(model, variants, pretrained=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        _logits(model, ids).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        installed.after_step()
    with torch.no_grad():
        in_training = _logits(model, ids)
    folder = settings.model_roots[0] / "checkpoint"
    folder.mkdir(parents=True)
    save_file(installed.effective_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    (folder / "config.json").write_text(json.dumps(config | installed.definition.stored()))
    loaded = load_model(f"path:{folder}", device="cpu", dtype="float32", settings=settings)
    assert seam.defined(loaded.model) == installed.definition
    with torch.no_grad():
        torch.testing.assert_close(_logits(loaded.model, ids), in_training, rtol=0, atol=0)


def test_a_config_whose_definition_is_none_is_refused_by_name(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, model_roots=(tmp_path / "models",))
    folder = settings.model_roots[0] / "odd"
    tiny("llama", dtype=torch.float32).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"keyhole_attention": {"routing": "hard"}}))
    with pytest.raises(KeyholeError, match="keyhole_attention that says routing") as refused:
        load_model(f"path:{folder}", device="cpu", dtype="float32", settings=settings)
    assert refused.value.code == ErrorCode.MODEL_REFUSED
