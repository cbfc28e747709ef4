"""Sources resolved without standing in anyone's way: in threads of their own, a few at a time.

The hub may take its time, and hashing a large file does. Neither may hold a database connection or one of the threads
that answer other requests, so submissions wait here, for their turn and no longer than some seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain

import anyio
import anyio.to_thread

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import ResolvedDataset, ResolvedModel, resolve_dataset, resolve_model
from services.sources.series import models_of

AT_ONCE = 8  # of each sort
WAIT_S = 10.0


@dataclass(frozen=True)
class Turns:
    """Who may resolve now. Sources on the hub queue apart, so that a hub that hangs leaves those of files alone."""

    hub: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    files: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2 * AT_ONCE))


async def resolve(
    turns: Turns, models: Sequence[str], dataset: str, settings: Settings
) -> tuple[list[ResolvedModel], ResolvedDataset]:
    """Models and dataset as they are now; raises KeyholeError: what resolving raises, or unavailable when busy."""
    on_hub = any(source.strip().startswith("hf:") for source in (*models, dataset))
    async with turn(turns, on_hub=on_hub):
        return await anyio.to_thread.run_sync(_resolve, models, dataset, settings, limiter=turns.threads)


async def resolve_all(
    turns: Turns, models: Sequence[str], dataset: str, settings: Settings
) -> tuple[dict[str, dict[str, ResolvedModel]], ResolvedDataset]:
    """By source, the models that it names, one or a series of them, each under its own source; and the dataset."""
    on_hub = any(source.strip().startswith("hf:") for source in (*models, dataset))
    async with turn(turns, on_hub=on_hub):
        return await anyio.to_thread.run_sync(_resolve_all, models, dataset, settings, limiter=turns.threads)


def _resolve_all(
    models: Sequence[str], dataset: str, settings: Settings
) -> tuple[dict[str, dict[str, ResolvedModel]], ResolvedDataset]:
    by_source = {source: models_of(source, settings) for source in dict.fromkeys(models)}
    resolved = {each: resolve_model(each, settings) for each in dict.fromkeys(chain(*by_source.values()))}
    found = {source: {each: resolved[each] for each in series} for source, series in by_source.items()}
    return found, resolve_dataset(dataset, settings)


@asynccontextmanager
async def turn(turns: Turns, *, on_hub: bool) -> AsyncIterator[None]:
    """One's turn to resolve; raises KeyholeError (unavailable) when none comes for a while."""
    semaphore = turns.hub if on_hub else turns.files
    try:
        async with asyncio.timeout(WAIT_S):
            await semaphore.acquire()
    except TimeoutError as error:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The API is busy resolving the sources of {AT_ONCE} other submissions; none ended in {WAIT_S:g} s.",
            "The model hub may be slow. Submit again in a moment, with the same idempotency key if you gave one."
            if on_hub
            else "Submit again in a moment, with the same idempotency key if you gave one.",
        ) from error
    try:
        yield
    finally:
        semaphore.release()


def _resolve(models: Sequence[str], dataset: str, settings: Settings) -> tuple[list[ResolvedModel], ResolvedDataset]:
    return [resolve_model(model, settings) for model in models], resolve_dataset(dataset, settings)
