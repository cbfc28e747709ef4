"""The models of a series that is watched, as they are now: folders that are whole, revisions, or a branch's commit."""

import time
from functools import partial
from pathlib import Path

import anyio.to_thread

from services.api import resolving
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources import hub
from services.sources.series import is_series, models_so_far

SETTLED_S = 5.0  # a folder whose newest file is younger may still be written
IN_PROGRESS_S = 600.0  # one that is no model yet is looked at again until its newest file is so old


async def present(turns: resolving.Turns, source: str, settings: Settings) -> list[str]:
    """Sources of the models there are, in the order of the numbers in their names; none if nothing matches yet.

    Raises KeyholeError: invalid_source, invalid_request (too many), unavailable.
    """
    async with resolving.turn(turns, on_hub=source.startswith("hf:")):
        return await anyio.to_thread.run_sync(partial(_present, source, settings), limiter=turns.threads)


def _present(source: str, settings: Settings) -> list[str]:
    if not is_series(source):
        name, _, branch = source.removeprefix("hf:").partition("@")
        commit, _ = hub.model_commit(name, branch)
        return [f"hf:{name}@{commit}"]  # each commit of a branch is a checkpoint of its own
    try:
        found = models_so_far(source, settings)
    except KeyholeError as error:
        if error.code is ErrorCode.MODEL_NOT_FOUND and source.startswith("path:"):
            return []  # the folder was there when its watch was made, and may come back
        raise
    if source.startswith("path:"):
        return [each for each in found if _settled(Path(each.removeprefix("path:")))]
    return found


def in_progress(folder: Path) -> bool:
    """Whether something was written in a folder lately."""
    age = _age_s(folder)
    return age is None or age < IN_PROGRESS_S


def _settled(folder: Path) -> bool:
    age = _age_s(folder)
    return age is not None and age >= SETTLED_S


def _age_s(folder: Path) -> float | None:
    """Seconds since something in the folder was written; None if it goes away while we look."""
    try:
        return time.time() - max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
    except OSError:
        return None
