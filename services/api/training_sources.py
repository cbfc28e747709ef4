"""What the parameters of trainings name besides model and data set: pinned when a training is submitted.

Validation data set and tokenizer are part of what a run is, so their identities are part of what makes two submissions
the same one, and the worker refuses what has changed since.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import anyio.to_thread

from services.api import resolving
from services.contracts.errors import KeyholeError
from services.contracts.parameters import JobParameters
from services.contracts.settings import Settings
from services.contracts.training.training import TrainingParameters
from services.sources import ResolvedDataset, resolve_dataset
from services.sources.tokenizers import ResolvedTokenizer, resolve_tokenizer

T = TypeVar("T")
_MODEL_FORMS = ("path:", "hf:", "builtin:")


@dataclass(frozen=True)
class Named:
    """What was found, by source as given."""

    datasets: Mapping[str, ResolvedDataset] = field(default_factory=dict)
    tokenizers: Mapping[str, ResolvedTokenizer] = field(default_factory=dict)

    def pinned(self, parameters: TrainingParameters) -> tuple[TrainingParameters, dict[str, str]]:
        """The parameters with pinned sources, and the identity of what each names, by the name of the parameter."""
        data = parameters.data
        found = {
            "validation_dataset": self.datasets.get(data.validation_dataset or ""),
            "tokenizer": self.tokenizers.get(data.tokenizer),
        }
        there = {name: each for name, each in found.items() if each is not None}
        changed = data.model_copy(update={name: each.source for name, each in there.items()})
        identities = {f"data.{name}": each.identity for name, each in there.items()}
        return parameters.model_copy(update={"data": changed}), identities


async def resolve(turns: resolving.Turns, every: Iterable[JobParameters], settings: Settings) -> Named:
    """Raises KeyholeError as resolve_dataset and resolve_tokenizer do, with the name of the parameter."""
    data = [each.data for each in every if isinstance(each, TrainingParameters)]
    datasets = dict.fromkeys(each.validation_dataset for each in data if each.validation_dataset)
    tokenizers = dict.fromkeys(each.tokenizer for each in data if each.tokenizer.startswith(_MODEL_FORMS))
    if not datasets and not tokenizers:
        return Named()
    async with resolving.turn(turns, on_hub=any(source.startswith("hf:") for source in (*datasets, *tokenizers))):
        look = partial(_look, datasets, tokenizers, settings)
        return await anyio.to_thread.run_sync(look, limiter=turns.threads)


def _look(datasets: Iterable[str], tokenizers: Iterable[str], settings: Settings) -> Named:
    return Named(
        {source: _found("validation_dataset", resolve_dataset, source, settings) for source in datasets},
        {source: _found("tokenizer", resolve_tokenizer, source, settings) for source in tokenizers},
    )


def _found(name: str, how: Callable[[str, Settings], T], source: str, settings: Settings) -> T:
    try:
        return how(source, settings)
    except KeyholeError as error:
        raise KeyholeError(error.code, f"data.{name}: {error.message}", error.hint) from error
