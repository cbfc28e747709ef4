"""Every D_a and D_c against brute-force float64 autograd on tiny random models of each family."""

import numpy as np
import pytest

from services.contracts.probes.common import Credit, QueryRange
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from tests.unit.workers.loaded import loaded
from workers.probes import gradient_scale
from workers.probes.measurement import Measurement

LENGTH = 23
EVERY_QUERY = QueryRange(start=0, step=1)  # rows of every length, even and odd


def _measure(
    model, ids, *, credit: Credit = "sequence", batch: int = 2, queries: QueryRange = EVERY_QUERY
) -> Measurement:
    sequences, length = ids.shape
    parameters = GradientScaleParameters(
        sequences=sequences, length=length, batch=batch, credit=credit, queries=queries
    )
    return gradient_scale.measure(loaded(model), parameters, ids.numpy().astype(np.int32), 0)


def _columns(measurement: Measurement, sequences: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    found = measurement.rows[TABLE.name]
    shape = (LAYERS, HEADS, sequences, queries)
    return found["log10_d_a"].reshape(shape), found["log10_d_c"].reshape(shape)


def _expected(model, ids, credit: Credit, queries: range) -> tuple[np.ndarray, np.ndarray]:
    recording = reference.record(model, ids)
    by_credit = {"sequence": reference.sequence_credit, "own_token": reference.own_token_credit}
    return reference.spreads(recording, by_credit[credit](recording, ids), queries)


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_spread_equals_brute_force_autograd(family: str, credit: Credit) -> None:
    model, ids = tiny(family), tokens(2, LENGTH)
    measured = _columns(_measure(model, ids, credit=credit), 2, LENGTH)
    for found, expected in zip(measured, _expected(model, ids, credit, range(LENGTH)), strict=True):
        # rows are stored in float32, and rotary and norm layers compute in float32 inside a float64 model
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
