"""The built-in model for tests that need a real one."""

import pytest

from services.contracts.settings import Settings
from workers.models import LoadedModel, load_model


@pytest.fixture(scope="session")
def smollm2(builtin_settings: Settings) -> LoadedModel:
    return load_model("builtin:smollm2-135m-instruct", device="cpu", dtype="float32", settings=builtin_settings)
