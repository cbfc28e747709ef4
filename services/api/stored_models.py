"""Models out of the database: ``checkpoint:ID``, ``run:ID@STEP|first|last|best``, and ``run:ID``, all of a run's."""

from typing import Any

from psycopg import Connection
from psycopg_pool import ConnectionPool

from db.repositories import checkpoints, run_listing
from db.repositories.checkpoints import CheckpointRow
from services.contracts.checkpoints import is_passing
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import ModelSource, parse_model_source
from services.sources import ResolvedModel, resolve_model

Pool = ConnectionPool[Connection[Any]]


def is_stored(text: str) -> bool:
    return text.strip().partition(":")[0] in ("checkpoint", "run")


def is_run(text: str) -> bool:
    """Whether the source names all checkpoints of a run."""
    form, _, rest = text.strip().partition(":")
    return form == "run" and "@" not in rest


def resolve_stored(pool: Pool, text: str, settings: Settings) -> ResolvedModel:
    """The model of a source out of the database, pinned to its checkpoint; that of an imported one to where it lies.

    Raises KeyholeError: invalid_source, model_not_found, and for imported ones model_changed and what resolving raises.
    """
    source = parse_model_source(text)
    with pool.connection() as conn:
        row = _found(conn, source)
    label = f"run:{row.run_id}@{row.step}"
    if row.source is None:
        return ResolvedModel(f"checkpoint:{row.id}", row.identity, row.model_type, row.config, None, label)
    resolved = resolve_model(row.source, settings)
    if resolved.identity != row.identity:
        raise KeyholeError(
            ErrorCode.MODEL_CHANGED,
            f"{label} was imported from {row.source} as {row.identity}; there is now {resolved.identity}.",
            "Put the files back as they were, or import the run again: keyhole import-run",
        )
    return ResolvedModel(resolved.source, resolved.identity, resolved.model_type, resolved.config, None, label)


def checkpoints_of(pool: Pool, text: str) -> list[str]:
    """The checkpoints of ``run:ID`` as ``run:ID@STEP`` in the order of their steps; raises KeyholeError."""
    source = parse_model_source(text)
    with pool.connection() as conn:
        rows = checkpoints.of_run(conn, int(source.name))
        kept = [row for row in rows if not is_passing(row.reasons)]
        if not kept:
            raise _nothing(conn, source)
    return [f"run:{row.run_id}@{row.step}" for row in kept]


def _found(conn: Connection[Any], source: ModelSource) -> CheckpointRow:
    number = int(source.name)
    if source.form == "checkpoint":
        row = checkpoints.get(conn, number) if number < 2**31 else None
        if row is None:
            raise KeyholeError(
                ErrorCode.MODEL_NOT_FOUND, f"There is no checkpoint {number}.", "List them with: keyhole checkpoints"
            )
        return row
    if source.revision is None:
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"{source} names all checkpoints of the run where one model is taken.",
            f"Name one, such as {source}@last, or submit a suite, whose models may be a run.",
        )
    row = checkpoints.at(conn, number, source.revision) if number < 2**31 else None
    if row is None:
        raise _nothing(conn, source)
    return row


def _nothing(conn: Connection[Any], source: ModelSource) -> KeyholeError:
    """What to say of a run that has no such checkpoint."""
    number = int(source.name)
    if number >= 2**31 or not run_listing.exists(conn, number):
        return KeyholeError(ErrorCode.MODEL_NOT_FOUND, f"There is no run {number}.", "List them with: keyhole runs")
    rows = checkpoints.of_run(conn, number)
    steps = [row.step for row in rows if source.revision is not None or not is_passing(row.reasons)]
    if not steps:
        hint = "Wait for the first one, or see what became of the run: keyhole run"
        return KeyholeError(ErrorCode.MODEL_NOT_FOUND, f"Run {number} has no checkpoint.", f"{hint} {number}")
    shown = ", ".join(map(str, steps if len(steps) <= 12 else [*steps[:6], "…", *steps[-5:]]))
    return KeyholeError(
        ErrorCode.MODEL_NOT_FOUND,
        f"Run {number} has no checkpoint at {source.revision}."
        if source.revision != "best"
        else f"No checkpoint of run {number} has a validation loss.",
        f"It has checkpoints at steps {shown}.",
    )
