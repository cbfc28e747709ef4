"""Transfer sweeps against whole passes with the same offsets, and which rows they take."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from services.contracts.errors import KeyholeError
from services.contracts.probes.calibration import SWEEP_TABLE, CalibrationParameters
from tests.unit.workers import reference
from tests.unit.workers.families import tiny, tokens
from tests.unit.workers.probes.calibration_pair import LENGTH, expected_norms, losses_at, measured, norms_of
from workers.probes.calibration_sweeps import SequenceRows, choose


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "opt"])
def test_losses_along_a_sweep_equal_whole_passes_with_the_same_offsets(family: str) -> None:
    student, teacher, ids = tiny(family), tiny(family, seed=5), tokens(1, LENGTH)
    taken = measured(student, teacher, ids, sweeps_per_sequence=2, sweep_points=5, sweep_range=2.0)
    found = taken.rows[SWEEP_TABLE.name]
    with torch.no_grad():
        teacher_logits = teacher(ids, use_cache=False).logits
    assert len(found["c"]) == 2 * 5
    for point in range(10):
        at = {name: values[point].item() for name, values in found.items()}
        place = (at["layer"], at["head"], at["query"])
        offsets = {(*place, at["first_key"]): at["c"], (*place, at["second_key"]): -at["c"]}
        recording = reference.record(student, ids, offsets)
        hard, soft = losses_at(recording, teacher_logits, ids, at["query"])
        assert at["hard_loss_nats"] == pytest.approx(hard.item(), rel=1e-5)
        assert at["soft_loss_nats"] == pytest.approx(soft.item(), rel=1e-5)
        row = recording.layers[at["layer"]].pattern[0, at["head"], at["query"]]
        assert at["first_weight"] == pytest.approx(row[at["first_key"]].item(), rel=1e-5)
        assert at["second_weight"] == pytest.approx(row[at["second_key"]].item(), rel=1e-5)


def test_slopes_at_zero_are_the_differences_of_the_gradients() -> None:
    """Central differences of second order over ±0.003: the rest is about its square."""
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(1, LENGTH)
    taken = measured(student, teacher, ids, sweeps_per_sequence=3, sweep_points=3, sweep_range=0.003)
    found = taken.rows[SWEEP_TABLE.name]
    _, gradients = expected_norms(student, teacher, ids)
    assert len(found["c"]) == 3 * 3
    for first in range(0, 9, 3):
        at = {name: values[first].item() for name, values in found.items()}
        for loss, name in enumerate(("hard_loss_nats", "soft_loss_nats")):
            row = gradients[loss][at["layer"]][0, at["head"], at["query"]]
            slope = (found[name][first + 2] - found[name][first]) / (found["c"][first + 2] - found["c"][first])
            assert slope == pytest.approx((row[at["first_key"]] - row[at["second_key"]]).item(), rel=1e-2, abs=1e-4)


def test_sweeps_take_the_two_most_attended_keys_of_low_rows_away_from_the_first_token() -> None:
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(3, LENGTH)
    taken = measured(student, teacher, ids, sweeps_per_sequence=4, sweep_points=3)
    recording = reference.record(student, ids)
    found = taken.rows[SWEEP_TABLE.name]
    assert len(found["c"]) == 3 * 4 * 3
    assert found["chosen"].all()
    ratios = norms_of(taken, 3, LENGTH)["r"]
    for point in range(len(found["c"])):
        at = {name: values[point].item() for name, values in found.items()}
        row = recording.layers[at["layer"]].pattern[at["sequence"], at["head"], at["query"]]
        assert row.topk(2).indices.tolist() == [at["first_key"], at["second_key"]]
        assert min(at["first_key"], at["second_key"]) > 0
        assert at["r"] == ratios[at["layer"], at["head"], at["sequence"], at["query"]]
    places = {(found["sequence"][p], found["query"][p]) for p in range(len(found["c"]))}
    assert len(places) == 3 * 4


def test_low_rows_are_chosen_by_slope_and_others_by_ratio() -> None:
    r = np.array([[[0.09, 0.02, 0.5, 0.3, 0.01, np.nan, 0.03]]])
    slope = np.array([[[0.2, 0.4, 9.0, 0.1, 0.7, 1.0, 0.0]]])
    first, second = np.array([[[3, 4, 2, 5, 0, 6, 1]]]), np.array([[[1, 2, 1, 3, 4, 2, -1]]])
    found = SequenceRows(
        range(5, 12), r, np.stack([np.ones_like(r)] * 2), np.stack([first, second]), np.stack([slope, slope])
    )
    # the fifth attends to key 0, the sixth is undefined, the seventh has one key
    assert [sweep.query for sweep in choose(found, 0, 9)] == [6, 5, 8, 7]
    assert [sweep.query for sweep in choose(found, 0, 1)] == [6]


def test_anchors_that_a_job_names_are_swept_besides() -> None:
    student, teacher, ids = tiny("llama"), tiny("llama", seed=5), tokens(2, LENGTH)
    named = {"layer": 1, "head": 2, "sequence": 8, "query": 10, "first_key": 0, "second_key": 10}
    taken = measured(student, teacher, ids, first=7, sweeps_per_sequence=0, sweep_points=3, anchors=[named, named])
    found = taken.rows[SWEEP_TABLE.name]
    assert {name: found[name].tolist() for name in named} == {name: [value] * 3 for name, value in named.items()}
    assert found["c"].tolist() == [-3.0, 0.0, 3.0]
    assert not found["chosen"].any()
    assert (np.diff(found["first_weight"]) > 0).all() and (np.diff(found["second_weight"]) < 0).all()


def test_anchors_of_a_head_that_the_model_lacks_are_refused() -> None:
    named = {"layer": 1, "head": 7, "sequence": 0, "query": 10, "first_key": 2, "second_key": 10}
    with pytest.raises(KeyholeError, match="no layer 1, head 7"):
        measured(tiny("llama"), tiny("llama", seed=5), tokens(1, LENGTH), anchors=[named])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sweep_points": 4}, "odd"),
        ({"anchors": [{"first_key": 40}]}, "key 40 lies behind query 36"),
        ({"anchors": [{"first_key": 5}]}, "both 5"),
        ({"anchors": [{"sequence": 2}]}, "sequences 0 to 1"),
        ({"anchors": [{"query": 37}]}, "query 37, which is not measured"),
        ({"anchors": [{"query": 63}], "queries": {"start": 63}}, "predicts nothing"),
    ],
)
def test_sweeps_that_cannot_be_made_are_refused_at_submission(wrong: dict, said: str) -> None:
    whole = {"layer": 0, "head": 0, "sequence": 0, "query": 36, "first_key": 3, "second_key": 5}
    if "anchors" in wrong:
        wrong = wrong | {"anchors": [whole | anchors for anchors in wrong["anchors"]]}
    with pytest.raises(ValidationError, match=said):
        CalibrationParameters.model_validate({"sequences": 2, "length": 64} | wrong)
