"""Attention metrics against patterns written out in float64, T×T and all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from services.contracts.attention_definition import Routing
from tests.unit.workers.families import VOCABULARY, tiny
from tests.unit.workers.training.small_runs import MODEL, Told, parameters, small_data, trainer
from workers.attention import seam
from workers.attention.inputs import LayerAttention, Outputs
from workers.training.attention_metrics import NAMES, attention_metrics, first_query
from workers.training.sequences import Part, TokenSequences
from workers.training.training import Trainer


class Kept:
    """Scores of all layers, computed from the queries and keys that the model used."""

    def __init__(self) -> None:
        self.scores: dict[int, Tensor] = {}

    def forward(self, attention: LayerAttention) -> None:
        groups = attention.query.shape[1] // attention.key.shape[1]
        key = attention.key.double().repeat_interleave(groups, 1)
        scores = attention.scaling * attention.query.double() @ key.transpose(-1, -2)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        self.scores[attention.layer] = scores.masked_fill(later, -torch.inf)

    def backward(self, attention: LayerAttention, delta: Outputs) -> None:
        """Nothing."""


def brute_force(scores: Tensor, start: int) -> dict[str, Tensor]:
    """Means over sequences and queries from ``start`` on, per head."""
    pattern = scores.softmax(-1)
    length = pattern.shape[-1]
    near = torch.tensor([[0 <= query - key < 8 for key in range(length)] for query in range(length)])
    values = {
        "entropy_nats": -torch.xlogy(pattern, pattern).sum(-1),
        "top_weight": pattern.amax(-1),
        "sink_mass": pattern[..., 0],
        "local_mass": (pattern * near).sum(-1),
    }
    return {name: value[:, :, start:].mean((0, 2)) for name, value in values.items()}


LLAMA = "config:llama?layers=2&heads=4&kv_heads=2&width=32&d_head=8&mlp=64&context=96&vocabulary=64"


@pytest.mark.parametrize(
    ("model", "length", "variants"),
    [(MODEL, 32, []), (LLAMA, 96, []), (MODEL, 32, ["qk_norm"]), (MODEL, 32, ["shared_softmax"])],
    ids=["short", "grouped", "qk_norm", "shared_softmax"],
)
def test_means_by_head_layer_and_model_are_those_of_the_patterns(model: str, length: int, variants: list[str]) -> None:
    made = trainer(parameters(length=length, variants=variants), model)
    with torch.no_grad():
        for parameter in made.model.parameters():  # patterns that are not flat
            parameter.mul_(8.0)
    sequences = small_data(length).validation[:5]
    shared = variants == ["shared_softmax"]
    found = attention_metrics(
        made.model, "shared_softmax" if shared else "softmax", sequences, step=3, batch=2, device="cpu", dtype="float32"
    )
    by_place = {(row.metric, row.layer, row.head): row.value for row in found}
    assert len(by_place) == len(found)
    assert {row.step for row in found} == {3}

    kept = Kept()
    with torch.no_grad(), seam.observing(made.model, [kept]):
        made.model(torch.from_numpy(sequences.astype(np.int64)))
    start = first_query(length)
    assert start == (16 if length == 32 else 32)
    expected: dict[tuple[str, int | None, int | None], float] = {}
    layers = {}
    for layer, scores in kept.scores.items():
        layers[layer] = brute_force(scores.mean(1, keepdim=True) if shared else scores, start)
        for name, heads in layers[layer].items():
            expected[name, layer, None] = float(heads.mean())
            if not shared:
                expected |= {(name, layer, head): float(value) for head, value in enumerate(heads)}
    for name in NAMES:
        expected[name, None, None] = sum(expected[name, layer, None] for layer in layers) / len(layers)
    assert by_place == pytest.approx(expected, rel=2e-5, abs=1e-6)  # float32 scores of size 10


def test_sigmoid_weights_have_no_rows_to_profile() -> None:
    made = trainer(parameters(variants=["sigmoid"]))
    told = Told()
    made.begin(told)
    assert "entropy_nats" not in {row.metric for row in told.metrics}
    assert list(told.curve("validation_loss_nats")) == [0]


@pytest.mark.parametrize("routing", ["softmax", "shared_softmax"])
def test_layers_with_a_soft_cap_have_a_profile_unless_heads_share_a_pattern(routing: Routing) -> None:
    """Averages of capped scores are no dot products: there is no one head to profile, and a run must go on."""
    model = tiny("gemma2", dtype=torch.float32)
    seam.attach(model)
    model.requires_grad_(True)
    variants = ["shared_softmax"] if routing == "shared_softmax" else []
    asked = parameters(steps=1, variants=variants)
    data = small_data()
    token_ids = data.validation % VOCABULARY
    below = replace(data, training=TokenSequences([Part("ids", token_ids)], 32, VOCABULARY), validation=token_ids)
    made, told = Trainer(model, asked, below, device="cpu"), Told()
    made.begin(told)
    made.advance(1, told)
    assert list(told.curve("validation_loss_nats")) == [0, 1]
    assert list(told.curve("entropy_nats")) == ([] if variants else [0, 1])


def test_in_bfloat16_rows_are_profiled_in_float32() -> None:
    """The model's queries are rounded; the statistics made of them are not rounded once more."""
    made = trainer(parameters(dtype="bfloat16"))
    data = small_data().validation[:4]
    where = {"step": 0, "batch": 4, "device": "cpu"}
    rounded = attention_metrics(made.model, "softmax", data, dtype="bfloat16", **where)
    exact = attention_metrics(made.model, "softmax", data, dtype="float32", **where)
    entropies = {row.value for row in rounded if row.metric == "entropy_nats"}
    # bfloat16 has steps of 2^-6 around 3: means of values so rounded would be that far off
    assert [row.value for row in rounded] == pytest.approx([row.value for row in exact], abs=2e-3)
    assert len(entropies) > 3
