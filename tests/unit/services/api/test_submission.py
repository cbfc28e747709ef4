"""What decides of a submission without a database."""

import pytest

from services.api import cursors
from services.api.submission import refuse_misfit, refuse_too_long, reuse_key
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS
from services.contracts.probes.gradient_scale import GradientScaleParameters
from services.sources import ResolvedModel

KIND = KINDS["gradient_scale"]


@pytest.mark.parametrize(("sequences", "batch"), [(1, 1), (16, 1), (16, 5), (7, 16), (999_999, 1), (1_000_000, 64)])
def test_shards_cover_every_sequence_once_in_whole_batches(sequences, batch):
    found = GradientScaleParameters(sequences=sequences, batch=batch).shards()
    following = 0
    for first, count in found:
        assert first == following
        following += count
    assert following == sequences
    assert len(found) <= 1001
    assert all(count % batch == 0 for _, count in found[:-1])


def test_the_reuse_key_changes_with_all_that_changes_a_result():
    base = {"length": 64, "credit": "sequence"}
    keys = {
        reuse_key(KIND, base, ["model"], "data"),
        reuse_key(KIND, base | {"credit": "own_token"}, ["model"], "data"),
        reuse_key(KIND, base, ["model2"], "data"),
        reuse_key(KIND, base, ["model"], "data2"),
        reuse_key(KIND, base, ["modeldata"], ""),
        reuse_key(KIND, base, ["model", "teacher"], "data"),
    }
    assert len(keys) == 6
    assert reuse_key(KIND, dict(reversed(base.items())), ["model"], "data") in keys


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"max_position_embeddings": 1024}, False),
        ({"max_position_embeddings": 1023}, True),
        ({"n_positions": 512}, True),
        ({"text_config": {"max_position_embeddings": 512}}, True),
        ({}, False),
        ({"max_position_embeddings": None}, False),
    ],
)
def test_sequences_longer_than_the_model_has_positions_are_refused(config, refused):
    model = ResolvedModel("path:/m", "sha256:0", "llama", config, None)
    parameters = GradientScaleParameters(length=1024)
    if refused:
        with pytest.raises(KeyholeError, match=r"parameters\.length is 1024"):
            refuse_too_long(model, parameters)
    else:
        refuse_too_long(model, parameters)


def test_a_cursor_comes_back_as_what_it_was_made_of():
    assert [cursors.decode(cursors.encode(number)) for number in (1, 42, 2**31 - 1)] == [1, 42, 2**31 - 1]


@pytest.mark.parametrize("config", [{"num_hidden_layers": 4, "num_attention_heads": 3}, {"n_layer": 4, "n_head": 3}])
def test_what_the_model_has_not_is_refused_at_submission(config: dict[str, object]) -> None:
    def submitted(kind: str, **parameters: object) -> None:
        model = ResolvedModel("path:m", "identity", "llama", config, None)
        refuse_misfit(model, KINDS[kind].parameters.model_validate(parameters))

    submitted("buried_keys", min_heads=3)
    submitted("jacobian_spectrum", sites=[{"layer": 3, "head": 2}])
    submitted("shared_routing", layers=[0, 3])
    for kind, wrong in (
        ("buried_keys", {"min_heads": 4}),
        ("jacobian_spectrum", {"sites": [{"layer": 4, "head": 0}]}),
        ("jacobian_spectrum", {"sites": [{"layer": 0, "head": 3}]}),
        ("shared_routing", {"layers": [4]}),
    ):
        with pytest.raises(KeyholeError) as refusal:
            submitted(kind, **wrong)
        assert refusal.value.code == ErrorCode.INVALID_REQUEST
