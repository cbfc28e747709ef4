"""``runs@last`` and its like in later stages of a suite: which checkpoints of the suite's own runs they are."""

import re
from typing import Any

from psycopg import Connection

from db.repositories import checkpoints, suite_stages, sweeps
from db.sweep_results import summarized
from services.api.suite_plan import Plan, PlannedStage, trains
from services.contracts.checkpoints import is_passing
from services.contracts.errors import ErrorCode, KeyholeError

_FORM = re.compile(r"(best-)?runs(?:@([0-9]{1,12}|first|last|best))?")
_ALMOST = re.compile(r"(best-)?runs?\b(?!:)")
STANDS_FOR_RUNS = "run:1@last"  # a source of the form that they get, for checks before there are any


def names_runs(source: str) -> bool:
    """Whether the source names runs of the suite; raises KeyholeError (invalid_source) where it nearly does."""
    if _FORM.fullmatch(source.strip()):
        return True
    if _ALMOST.match(source.strip()):
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"{source!r} names no runs of the suite.",
            "Use runs, or runs@first, @last, @best or @STEP; best-runs in the same forms for a sweep.",
        )
    return False


def refuse_without_runs(plan: Plan) -> None:
    """Raise KeyholeError (invalid_request) for a stage that names runs of the suite which no stage before makes."""
    for number, stage in enumerate(plan.stages):
        for source in filter(names_runs, stage.models):
            if not any(map(trains, plan.stages[:number])):
                raise KeyholeError(
                    ErrorCode.INVALID_REQUEST,
                    f"Stage {number} takes {source!r}, but no stage before it trains.",
                    "Let a stage before have probes of kind training, or name models.",
                )
            if source.strip().startswith("best-") and plan.sweep is None:
                raise KeyholeError(
                    ErrorCode.INVALID_REQUEST,
                    f"Stage {number} takes {source!r}, but the suite is no sweep.",
                    f"Name {source.strip().removeprefix('best-')!r}.",
                )


def expanded(conn: Connection[Any], suite_id: int, stage: PlannedStage) -> PlannedStage:
    """The stage with ``run:ID@STEP`` for every checkpoint of the suite's runs that it names.

    Raises KeyholeError (model_not_found) where a run has no such checkpoint, or the suite no run that succeeded.
    """
    models: list[str] = []
    for source in stage.models:
        models += _checkpoints(conn, suite_id, source) if names_runs(source) else [source]
    return stage.model_copy(update={"models": list(dict.fromkeys(models))})


def _checkpoints(conn: Connection[Any], suite_id: int, source: str) -> list[str]:
    form = _FORM.fullmatch(source.strip())
    assert form is not None, "the caller has asked"
    best, place = form.groups()
    run_ids = suite_stages.runs_that_succeeded(conn, suite_id)
    if best:
        chosen = _of_best_settings(conn, suite_id)
        run_ids = [run_id for run_id in run_ids if run_id in chosen]
    if not run_ids:
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND, f"{source!r}: no run of suite {suite_id} has succeeded.", "Retry its jobs."
        )
    return [f"run:{run_id}@{step}" for run_id in run_ids for step in _steps(conn, run_id, place)]


def _of_best_settings(conn: Connection[Any], suite_id: int) -> set[int]:
    """Runs of each variant's best setting, all its seeds."""
    sweep_id = sweeps.of_suite(conn, suite_id)
    members = sweeps.members(conn, sweep_id) if sweep_id is not None else []
    best = summarized(map(sweeps.outcome, members)).best
    return {
        each.run_id
        for each in members
        if each.run_id is not None  # its job was not deleted
        and each.variant in best
        and each.setting == dict(best[each.variant].setting)
    }


def _steps(conn: Connection[Any], run_id: int, place: str | None) -> list[int]:
    if place is None:
        found = [each.step for each in checkpoints.of_run(conn, run_id) if not is_passing(each.reasons)]
    else:
        one = checkpoints.at(conn, run_id, place)
        found = [one.step] if one is not None else []
    if not found:
        steps = ", ".join(str(each.step) for each in checkpoints.of_run(conn, run_id))
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND,
            f"Run {run_id} has no checkpoint{f' at {place}' if place else ''}.",
            f"It has checkpoints at steps {steps}." if steps else "Train it again.",
        )
    return found
