"""What a child process has loaded, and on what it runs."""

import platform
import socket
from importlib.metadata import version
from typing import Any

import torch

from db.repositories.jobs import JobRow
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.probes.common import ProbeParameters
from services.contracts.settings import Settings
from workers import checkpoint_cache
from workers.data import TokenSet, read_sequences
from workers.models import load_model
from workers.models.loaded import LoadedModel
from workers.models.memory import estimate_bytes


class Bench:
    """A model and a set of tokens, which stay for the next job that wants the same."""

    def __init__(self, device: str, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self._model: tuple[tuple[str, str], LoadedModel] | None = None
        self._tokens: tuple[tuple[str, ...], TokenSet] | None = None

    def model(self, source: str, identity: str, dtype: str) -> LoadedModel:
        """The model, loaded now or before; raises KeyholeError (model_changed) if it is another than was submitted."""
        if self._model is not None and self._model[0] == (identity, dtype):
            return self._model[1]
        self._model = self._tokens = None  # its memory is needed for the next
        loaded = self.fresh_model(source, identity, dtype)
        self._model = ((identity, dtype), loaded)
        return loaded

    def clear(self) -> None:
        """Let go of both: their memory is needed."""
        self._model = self._tokens = None

    def fresh_model(self, source: str, identity: str, dtype: str) -> LoadedModel:
        with checkpoint_cache.opened(source, identity, self.settings) as checkpoint:
            loaded = load_model(source, device=self.device, dtype=dtype, settings=self.settings, checkpoint=checkpoint)
        if loaded.identity != identity:
            raise KeyholeError(
                ErrorCode.MODEL_CHANGED,
                f"The model at {source} is now {loaded.identity}; submitted was {identity}.",
                "Submit the job again to measure the model as it is now.",
            )
        return loaded

    def tokens(self, job: JobRow, parameters: ProbeParameters, loaded: LoadedModel) -> TokenSet:
        """The job's token sequences; raises KeyholeError (dataset_changed) if they are not those submitted."""
        key = (job.dataset_identity, job.model_identity, str(parameters.sequences), str(parameters.length))
        if self._tokens is not None and self._tokens[0] == key:
            return self._tokens[1]
        found = read_sequences(
            job.dataset_source,
            tokenizer=loaded.tokenizer,
            vocabulary_size=loaded.architecture.vocabulary_size,
            sequences=parameters.sequences,
            length=parameters.length,
            settings=self.settings,
        )
        if found.identity != job.dataset_identity:
            raise KeyholeError(
                ErrorCode.DATASET_CHANGED,
                f"The data set at {job.dataset_source} is now {found.identity}; submitted was {job.dataset_identity}.",
                "Submit the job again to measure with the data as it is now.",
            )
        self._tokens = (key, found)
        return found


def environment_of(loaded: LoadedModel, parameters: ProbeParameters) -> dict[str, Any]:
    """Stored with each job: device, arithmetic, versions, host, and the memory that its passes were thought to need."""
    return {
        **surroundings(loaded.device, parameters.dtype),
        "memory_estimate_bytes": estimate_bytes(
            loaded.architecture, parameters.length, parameters.batch, parameters.dtype
        ),
    }


def surroundings(device: str, dtype: str) -> dict[str, Any]:
    """What numbers may depend on besides what was asked."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "dtype": dtype,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "keyhole": version("keyhole"),
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "threads": torch.get_num_threads(),
    }
