"""Every probe on a GPU: in float64 its rows are those of the CPU."""

import numpy as np
import pytest
import torch

from services.contracts.kinds import KINDS
from services.contracts.probes.common import ProbeParameters
from tests.unit.workers.families import tiny, tokens
from workers.attention import parity
from workers.models.loaded import LoadedModel, describe
from workers.models.others import OtherModels
from workers.probes import PROBES, passes
from workers.probes.measurement import Measurement
from workers.probes.passes import PassProbe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH = 24
# columns that name a key or head, which rounding may exchange with another of nearly equal value
CHOICES = {"top_key", "key", "advantage_rank", "attention_rank", "paired_head", "first_key", "second_key"}
OWN_SETTINGS = {
    "buried_keys": {"min_heads": 2},
    "attention_profile": {"repeated_sequences": 1, "repeated_length": 8},
    "pattern_stability": {"checkpoints": [{"model": "path:another", "run": "another"}]},
}


def _ready(family: str, device: str, seed: int = 0) -> LoadedModel:
    model = tiny(family).to(device)
    if seed:
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
                parameter.add_(0.02 * noise.to(device))
    difference = parity.check(model, tokens(2, LENGTH))
    return LoadedModel(model, None, f"test {seed}", describe(model), difference, device, "float64")


def _measure(kind: str, family: str, device: str) -> Measurement:
    fields = {"sequences": 2, "length": LENGTH, "batch": 2, "queries": {"start": 4, "step": 3}}
    parameters: ProbeParameters = KINDS[kind].parameters.model_validate(fields | OWN_SETTINGS.get(kind, {}))
    ids, probe = tokens(2, LENGTH).numpy().astype(np.int32), PROBES[kind]
    if isinstance(probe, PassProbe):
        return passes.measure(probe, _ready(family, device), parameters, ids, 0)
    others = OtherModels([lambda: _ready(family, device, seed=1)])
    return probe.measure(_ready(family, device), parameters, ids, 0, others)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_rows_of_the_cpu(kind: str, family: str) -> None:
    on_gpu, on_cpu = (_measure(kind, family, device) for device in ("cuda", "cpu"))
    for table, columns in on_cpu.rows.items():
        for name, expected in columns.items():
            found = on_gpu.rows[table][name]
            assert found.dtype == expected.dtype
            if name in CHOICES:
                assert np.mean(found == expected) > 0.95, (table, name)
            else:
                # stored as float32 mostly; rotary and norm layers compute in float32 inside a float64 model
                np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4, err_msg=f"{table}.{name}")
