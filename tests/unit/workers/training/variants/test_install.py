"""Variants put together: what excludes each other, what a model keeps of its own."""

import pytest

from services.contracts.attention_definition import AttentionDefinition
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.training.variants import Natq, QkNorm, SharedSoftmax, SigmaReparam, Sigmoid, SpectralNorm
from tests.unit.workers.families import tiny
from workers.attention import seam
from workers.training.variants import install


def _attached(definition: AttentionDefinition | None = None):
    model = tiny("llama").requires_grad_()
    seam.attach(model)
    if definition is not None:
        seam.define(model, definition)
    return model


def test_the_control_changes_nothing() -> None:
    model = _attached()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    installed = install(model, [])
    installed.after_step()
    assert installed.definition.plain and installed.query_gradient is None and installed.log() == []
    assert installed.effective_weights().keys() == before.keys()
    assert all((tensor == before[name]).all() for name, tensor in model.state_dict().items())


def test_variants_add_up_and_a_model_keeps_what_none_of_them_changes() -> None:
    own = AttentionDefinition(qk_norm=True, scale=0.4)
    assert install(_attached(own), []).definition == own
    assert install(_attached(own), [Sigmoid(bias=-2.0)]).definition == own.model_copy(
        update={"routing": "sigmoid", "sigmoid_bias": -2.0}
    )
    assert install(_attached(), [QkNorm(), SharedSoftmax()]).definition == AttentionDefinition(
        qk_norm=True, routing="shared_softmax"
    )
    assert install(_attached(AttentionDefinition(routing="sigmoid")), [SharedSoftmax()]).definition.sigmoid_bias is None


@pytest.mark.parametrize(
    "variants",
    [[Sigmoid(), SharedSoftmax()], [SigmaReparam(), SpectralNorm()], [QkNorm(), QkNorm()], [Natq(), Sigmoid()]],
)
def test_variants_that_exclude_each_other_are_refused(variants) -> None:
    with pytest.raises(ValueError, match=r"each a|given twice|natq uses"):
        install(_attached(), variants)


def test_natq_is_refused_on_a_model_whose_rows_are_no_softmax() -> None:
    with pytest.raises(KeyholeError, match="this model's attention is sigmoid") as refused:
        install(_attached(AttentionDefinition(routing="sigmoid")), [Natq()])
    assert refused.value.code == ErrorCode.MODEL_UNSUPPORTED
