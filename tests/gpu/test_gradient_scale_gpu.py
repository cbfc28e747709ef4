"""Gradient scale on a GPU against the same on the CPU, and against brute force."""

import numpy as np
import pytest
import torch

from services.contracts.probes.common import Credit, QueryRange
from services.contracts.probes.gradient_scale import TABLE, GradientScaleParameters
from tests.unit.workers import reference
from tests.unit.workers.families import FAMILIES, HEADS, LAYERS, tiny, tokens
from workers.attention import parity
from workers.models.loaded import LoadedModel, describe
from workers.probes import gradient_scale, passes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH = 24


def _measure(family: str, device: str, dtype: torch.dtype, credit: Credit) -> tuple[np.ndarray, np.ndarray]:
    model, ids = tiny(family, dtype=dtype).to(device), tokens(2, LENGTH)
    difference = parity.check(model, ids)
    ready = LoadedModel(model, None, "test", describe(model), difference, device, str(dtype).removeprefix("torch."))
    parameters = GradientScaleParameters(
        sequences=2, length=LENGTH, batch=2, credit=credit, queries=QueryRange(start=0, step=1)
    )
    columns = passes.measure(gradient_scale.PROBE, ready, parameters, ids.numpy(), 0).rows[TABLE.name]
    shape = (LAYERS, HEADS, 2, LENGTH)
    return columns["log10_d_a"].reshape(shape), columns["log10_d_c"].reshape(shape)


@pytest.mark.parametrize("credit", ["sequence", "own_token"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_what_brute_force_gives(family: str, credit: Credit) -> None:
    ids = tokens(2, LENGTH)
    recording = reference.record(tiny(family), ids)
    by_credit = {"sequence": reference.sequence_credit, "own_token": reference.own_token_credit}
    expected = reference.spreads(recording, by_credit[credit](recording, ids), range(LENGTH))
    # float32 on either device: |A| of a row whose values nearly agree is a small difference and keeps fewer digits
    for found, exact in zip(_measure(family, "cuda", torch.float32, credit), expected, strict=True):
        np.testing.assert_allclose(found, exact, atol=5e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_bfloat16_on_a_gpu_stays_as_near_to_float64_as_on_a_cpu(family: str) -> None:
    ids = tokens(2, LENGTH)
    recording = reference.record(tiny(family), ids)
    expected = reference.spreads(recording, reference.sequence_credit(recording, ids), range(LENGTH))
    for found, exact in zip(_measure(family, "cuda", torch.bfloat16, "sequence"), expected, strict=True):
        error = np.abs(found - exact)[np.isfinite(exact)]
        assert np.median(error) < 0.02
        assert np.quantile(error, 0.9) < 0.1
