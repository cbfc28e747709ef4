"""Sources that the parameters of a training name, looked at when it is submitted: a worker would find them too late.

The worker resolves them again, as they are then: nothing of what is found here is kept.
"""

from collections.abc import Iterable
from functools import partial

import anyio.to_thread

from services.api import resolving
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.parameters import JobParameters
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.contracts.training.training import TrainingParameters
from services.sources import resolve_dataset
from services.sources.roots import model_path


async def require(turns: resolving.Turns, every: Iterable[JobParameters], settings: Settings) -> None:
    """Raise KeyholeError for a validation data set that cannot be resolved, or a tokenizer's folder that is not there.

    As resolving does: invalid_source, dataset_…, model_not_found, unavailable.
    """
    data = [each.data for each in every if isinstance(each, TrainingParameters)]
    datasets = list(dict.fromkeys(each.validation_dataset for each in data if each.validation_dataset))
    tokenizers = list(dict.fromkeys(each.tokenizer for each in data if each.tokenizer.startswith("path:")))
    if datasets or tokenizers:
        async with resolving.turn(turns, on_hub=any(source.startswith("hf:") for source in datasets)):
            look = partial(_look, datasets, tokenizers, settings)
            await anyio.to_thread.run_sync(look, limiter=turns.threads)


def _look(datasets: Iterable[str], tokenizers: Iterable[str], settings: Settings) -> None:
    for source in datasets:
        try:
            resolve_dataset(source, settings)
        except KeyholeError as error:
            raise KeyholeError(error.code, f"data.validation_dataset: {error.message}", error.hint) from error
    for source in tokenizers:
        folder = model_path(parse_model_source(source).name, settings)
        if not folder.exists():
            raise KeyholeError(
                ErrorCode.MODEL_NOT_FOUND,
                f"data.tokenizer: There is no folder {folder}.",
                "Workers must see it under the same path.",
            )
