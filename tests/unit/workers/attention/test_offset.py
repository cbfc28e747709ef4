"""Offsets on single scores against whole passes of the untouched computation with the same offsets."""

import pytest
import torch

from services.contracts.errors import ErrorCode, KeyholeError
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from workers.attention import rows, seam
from workers.attention.offset import Branch, branched

LENGTH = 13  # longer than the families' window


def _attached(family: str):
    model = tiny(family)
    seam.attach(model)
    return model


@pytest.mark.parametrize("block", [1, 2**18])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_weights_are_those_of_a_pass_with_the_same_offsets(family: str, block: int, monkeypatch) -> None:
    """Also for the query's own score, for the first position, and while other branches are in the same pass."""
    monkeypatch.setattr(rows, "CPU_BLOCK", block)
    model, ids = _attached(family), tokens(1, LENGTH)
    branches = [
        Branch(0, 1, 9, (9, 7), (1.5, -1.5)),
        Branch(1, 3, 9, (9, 7), (-2.0, 2.0)),
        Branch(0, 0, 4, (2, 3), (0.0, 0.0)),
        Branch(1, 2, 12, (8, 11), (3.0, -3.0)),
        Branch(1, 0, 1, (0, 1), (-1.0, 0.5)),
    ]
    found = branched(model, ids[0], branches)
    for number, branch in enumerate(branches):
        offsets = {
            (branch.layer, branch.head, branch.query, key): amount
            for key, amount in zip(branch.keys, branch.offsets, strict=True)
        }
        expected = reference.record(model, ids, offsets)
        torch.testing.assert_close(
            found.logits[number], expected.logits[0, branch.query].detach(), rtol=1e-5, atol=1e-6
        )
        row = expected.layers[branch.layer].pattern[0, branch.head, branch.query, list(branch.keys)]
        torch.testing.assert_close(found.weights[number], row, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("branch", "said"),
    [
        (Branch(LAYERS, 0, 9, (8, 9), (0.0, 0.0)), "no layer 2"),
        (Branch(0, HEADS, 9, (8, 9), (0.0, 0.0)), "head 4"),
        (Branch(0, 0, 9, (1, 9), (0.0, 0.0)), "Key 1 is not in the row of query 9"),
    ],
)
def test_places_that_the_model_does_not_have_are_named(branch: Branch, said: str) -> None:
    with pytest.raises(KeyholeError, match=said) as failure:
        branched(_attached("mistral"), tokens(1, LENGTH)[0], [branch])
    assert failure.value.code == ErrorCode.INVALID_REQUEST


def test_a_model_that_mixes_positions_otherwise_is_refused() -> None:
    model = _attached("llama")
    model.model.layers[0].mixer = torch.nn.Conv1d(1, 1, 3)
    with pytest.raises(KeyholeError, match="mixer is a Conv1d"):
        branched(model, tokens(1, LENGTH)[0], [Branch(0, 0, 9, (8, 9), (0.0, 0.0))])
