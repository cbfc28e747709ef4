"""Which jobs a model's attention definition rules out, kind by kind, before anything is stored."""

from typing import Any

import pytest

from services.api.definitions import refuse_other_routing
from services.contracts.attention_definition import CONFIG_KEY
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.sources import ResolvedModel

ROUTINGS = ("sigmoid", "shared_softmax", "shared_sigmoid")
MEASURE_ANY_ROUTING = {"shared_routing", "training"}
OTHER_MODELS: dict[str, dict[str, Any]] = {
    "calibration": {"teacher": "path:/teacher"},
    "pattern_stability": {"checkpoints": [{"model": "path:/other", "step": 1}]},
}


def _model(**definition: Any) -> ResolvedModel:
    return ResolvedModel("checkpoint:7", "sha256:0", "gpt2", {CONFIG_KEY: definition} if definition else {}, None)


def _submit(kind: str, *models: ResolvedModel, **parameters: Any) -> None:
    of_kind = KINDS[kind]
    asked = of_kind.parameters.model_validate(OTHER_MODELS.get(kind, {}) | parameters)
    refuse_other_routing(of_kind, models, asked)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_softmax_rows_refuse_a_model_without_them(kind: str, routing: str) -> None:
    if kind in MEASURE_ANY_ROUTING:
        _submit(kind, _model(routing=routing))
        return
    with pytest.raises(KeyholeError, match=f"checkpoint:7 is {routing}; the numbers of {kind} are") as refused:
        _submit(kind, _model(routing=routing))
    assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_minds_normalised_queries_or_a_fixed_scale(kind: str) -> None:
    _submit(kind, _model(qk_norm=True, scale=0.12))
    _submit(kind, _model())


def test_a_teacher_may_have_any_routing_and_a_compared_checkpoint_may_not() -> None:
    _submit("calibration", _model(), _model(routing="sigmoid"))
    with pytest.raises(KeyholeError, match="pattern_stability"):
        _submit("pattern_stability", _model(), _model(routing="sigmoid"))


def test_natq_needs_softmax_rows_unless_the_run_changes_the_routing_itself() -> None:
    _submit("training", _model(qk_norm=True), variants=["natq"])
    _submit("training", _model(routing="sigmoid"), variants=["qk_norm"])
    with pytest.raises(KeyholeError, match="natq uses the Fisher matrix"):
        _submit("training", _model(routing="sigmoid"), variants=["natq", "qk_norm"])


def test_a_definition_that_is_none_is_refused_at_submission() -> None:
    with pytest.raises(KeyholeError, match="keyhole_attention that says routing") as refused:
        _submit("gradient_scale", _model(routing="hard"))
    assert refused.value.code == ErrorCode.MODEL_REFUSED
