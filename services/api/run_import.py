"""Importing: models that exist already become the checkpoints of a run. Stored is where they lie, and what they are."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import checkpoints, runs
from db.repositories.checkpoints import ImportedCheckpoint
from services.api import resolving
from services.contracts.checkpoints import RunImport
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source, step_in
from services.sources import ResolvedModel
from services.sources.series import is_series

_FORMS = ("path", "hf")


async def import_run(
    pool: ConnectionPool[Connection[Any]],
    turns: resolving.Turns,
    body: RunImport,
    *,
    token_id: int,
    settings: Settings,
) -> int:
    """Make the run and return its number.

    Raises KeyholeError: invalid_source, model_…, invalid_request, unavailable.
    """
    for source in body.models:
        _refuse_form(source)
    found = await resolving.resolve_models(turns, body.models, settings)
    imported = _checkpoints({each: model for series in found.values() for each, model in series.items()})
    name = body.name or ", ".join(body.models)[:200]
    source = ", ".join(body.models)
    return await run_in_threadpool(_store, pool, name, source, imported, token_id)


def _refuse_form(source: str) -> None:
    form = source.strip().partition(":")[0]
    if form in _FORMS:
        return
    if not is_series(source):
        parse_model_source(source)  # what is no source at all is told so
    raise KeyholeError(
        ErrorCode.INVALID_SOURCE,
        f"{source!r} cannot be imported: only folders and revisions of the hub can.",
        "Name path:DIR/*, hf:ORG/NAME@PATTERN, or single models of these forms.",
    )


def _checkpoints(models: Mapping[str, ResolvedModel]) -> list[ImportedCheckpoint]:
    """The models by step; raises KeyholeError (invalid_request) for a name without a step, and for two of one step."""
    by_step: dict[int, str] = {}
    imported = []
    for source, model in models.items():
        step = _step(source)
        if step in by_step:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"{by_step[step]} and {source} are both step {step:,} of the run.",
                "Name one of them, or import them as two runs.",
            )
        by_step[step] = source
        _require_storable(source, model.config)
        imported.append(ImportedCheckpoint(step, model.source, model.identity, model.model_type, model.config))
    return sorted(imported, key=lambda each: each.step)


def _require_storable(source: str, config: dict[str, Any]) -> None:
    """Raise KeyholeError (model_refused) for what JSON files can hold and PostgreSQL's JSON cannot."""
    try:
        text = json.dumps(config, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:  # NaN, half of a surrogate pair
        problem = str(error)
    else:
        if "\\u0000" not in text:
            return
        problem = "it has a NUL character"
    raise KeyholeError(
        ErrorCode.MODEL_REFUSED, f"config.json of {source} cannot be stored: {problem}.", "Save the model again."
    )


def _step(source: str) -> int:
    parsed = parse_model_source(source)
    name = parsed.revision or "" if parsed.form == "hf" else parsed.name.rstrip("/").rpartition("/")[2]
    step = step_in(name)
    if step is None or step >= 2**31:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{source} does not tell its step: {name!r} has no number below 2,147,483,648.",
            "Number the folders, such as step-1000, or name revisions that have their step in their names.",
        )
    return step


def _store(
    pool: ConnectionPool[Connection[Any]],
    name: str,
    source: str,
    imported: list[ImportedCheckpoint],
    token_id: int,
) -> int:
    with pool.connection() as conn, conn.transaction():
        run_id = runs.insert_imported(conn, name, source, imported[-1].step, token_id)
        checkpoints.insert_imported(conn, run_id, imported)
    return run_id
