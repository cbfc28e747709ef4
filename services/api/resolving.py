"""Sources resolved without standing in anyone's way: in threads of their own, a few at a time.

The hub may take its time, and hashing a large file does. Neither may hold a database connection or one of the threads
that answer other requests, so submissions wait here, for their turn and no longer than some seconds. Checkpoints and
runs are looked up in the database, on a connection that is given back at once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import anyio
import anyio.to_thread

from services.api import stored_models
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import ResolvedDataset, ResolvedModel, resolve_dataset, resolve_model
from services.sources.series import models_of, within_limit

AT_ONCE = 8  # of each sort
WAIT_S = 10.0


@dataclass(frozen=True)
class Turns:
    """Who may resolve now. Sources on the hub queue apart, so that a hub that hangs leaves those of files alone."""

    hub: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    files: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2 * AT_ONCE))
    pool: stored_models.Pool | None = None  # of the database that has the checkpoints


async def resolve(
    turns: Turns, models: Sequence[str], dataset: str, settings: Settings
) -> tuple[list[ResolvedModel], ResolvedDataset]:
    """Models and dataset as they are now; raises KeyholeError: what resolving raises, or unavailable when busy."""
    on_hub = any(source.strip().startswith("hf:") for source in (*models, dataset))
    async with turn(turns, on_hub=on_hub):
        ask = partial(_resolve, turns.pool, models, dataset, settings)
        return await anyio.to_thread.run_sync(ask, limiter=turns.threads)


async def resolve_all(
    turns: Turns, models: Sequence[str], datasets: Sequence[str], settings: Settings
) -> tuple[dict[str, dict[str, ResolvedModel]], dict[str, ResolvedDataset]]:
    """By source, the models that it names, one or a series of them, each under its own source; and the datasets."""
    on_hub = any(source.strip().startswith("hf:") for source in (*models, *datasets))
    async with turn(turns, on_hub=on_hub):
        ask = partial(_resolve_all, turns.pool, models, datasets, settings)
        return await anyio.to_thread.run_sync(ask, limiter=turns.threads)


def _resolve_all(
    pool: stored_models.Pool | None, models: Sequence[str], datasets: Sequence[str], settings: Settings
) -> tuple[dict[str, dict[str, ResolvedModel]], dict[str, ResolvedDataset]]:
    by_source = {source: _members(pool, source, settings) for source in dict.fromkeys(models)}
    resolved = {each: _model(pool, each, settings) for each in dict.fromkeys(chain(*by_source.values()))}
    found = {source: {each: resolved[each] for each in series} for source, series in by_source.items()}
    return found, {source: resolve_dataset(source, settings) for source in dict.fromkeys(datasets)}


async def resolve_models(
    turns: Turns, models: Sequence[str], settings: Settings
) -> dict[str, dict[str, ResolvedModel]]:
    """By source, the models that it names, one or a series of them, each under its own source."""
    return (await resolve_all(turns, models, [], settings))[0]


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


def _resolve(
    pool: stored_models.Pool | None, models: Sequence[str], dataset: str, settings: Settings
) -> tuple[list[ResolvedModel], ResolvedDataset]:
    return [_model(pool, model, settings) for model in models], resolve_dataset(dataset, settings)


def _members(pool: stored_models.Pool | None, source: str, settings: Settings) -> list[str]:
    if pool is not None and stored_models.is_run(source):
        return within_limit(source, stored_models.checkpoints_of(pool, source))
    return models_of(source, settings)


def _model(pool: stored_models.Pool | None, source: str, settings: Settings) -> ResolvedModel:
    if pool is not None and stored_models.is_stored(source):
        return stored_models.resolve_stored(pool, source, settings)
    return resolve_model(source, settings)
