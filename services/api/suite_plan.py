"""What a suite is to do, stage by stage, with nothing left out: presets filled in, changes made, sweeps expanded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import KINDS, kind_named
from services.contracts.suites import Preset, Stage, SuiteCreate, SuiteItem, merged
from services.contracts.sweeps import SweepCreate
from services.contracts.training.sweep import Member, Sweep
from services.presets import preset_named


class PlannedStage(BaseModel):
    """One stage as it is stored until its turn comes."""

    models: list[str]
    dataset: str
    probes: list[SuiteItem]
    on_failure: Literal["skip", "continue"] = "skip"
    priority: int = 0
    time_limit_s: int = 86_400
    force: bool = False


@dataclass(frozen=True)
class PlannedSweep:
    body: Sweep
    members: Sequence[Member]  # in the order of the first stage's probes


@dataclass(frozen=True)
class Plan:
    name: str
    stages: Sequence[PlannedStage]  # the first is submitted at once
    sweep: PlannedSweep | None = None


def plan(body: SuiteCreate) -> Plan:
    """The preset, if any, with what the submission changes; raises KeyholeError (not_found, invalid_request)."""
    terms = {"priority": body.priority, "time_limit_s": body.time_limit_s, "force": body.force}
    preset = preset_named(body.preset) if body.preset is not None else None
    models = body.models or (preset.models if preset else [])
    dataset = body.dataset or (preset.dataset if preset else None)
    probes, stages = (preset.probes, preset.stages) if preset else (body.probes, body.stages)
    if dataset is None or not (models or (probes and all(item.model for item in probes))):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "A suite of your own needs models and a dataset.",
            "Give `models`, a list of sources, and `dataset`; only presets have their own.",
        )
    kinds = {item.kind for stage in stages for item in stage.probes} | {item.kind for item in probes}
    swept = _changed_sweep(preset, body.parameters) if preset and preset.sweep else None
    _refuse_useless(body.parameters, kinds | ({"training"} if swept else set()))
    name = (body.name or body.preset or ", ".join(dict.fromkeys(item.kind for item in probes)))[:200]
    if preset and body.dataset:  # other data than the preset's: for every stage
        stages = [stage.model_copy(update={"dataset": None}) for stage in stages]
    later = _later(stages, dataset, body.parameters, terms)
    if swept is not None:
        return _of_sweep(name, swept, models, dataset, later, terms)
    changed = [changed_item(item, body.parameters) for item in probes]
    return Plan(name, [PlannedStage(models=models, dataset=dataset, probes=changed, **terms), *later])


def plan_of_sweep(body: SweepCreate) -> Plan:
    """The members as a first stage; raises KeyholeError (invalid_request)."""
    terms = {"priority": body.priority, "time_limit_s": body.time_limit_s, "force": body.force}
    name = body.name or f"sweep of {', '.join(body.axes) or 'variants'}"
    sweep = Sweep.model_validate(body.model_dump(include=set(Sweep.model_fields)))
    return _of_sweep(name[:200], sweep, [body.model], body.dataset, _later(body.stages, body.dataset, {}, terms), terms)


def changed_item(item: SuiteItem, changes: Mapping[str, Any]) -> SuiteItem:
    """The probe with the values meant for it: those for all that have the parameter, then those for its kind."""
    return item.model_copy(update={"parameters": _changed(item.kind, item.parameters, changes)})


def _changed(kind: str, parameters: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    fields = kind_named(kind).parameters.model_fields
    general = {name: value for name, value in changes.items() if name in fields}
    own = changes.get(kind, {})
    if not isinstance(own, dict):
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"parameters.{kind} is {own!r}.",
            f"Below the name of a kind stand its parameters, such as {kind}.length.",
        )
    return merged(merged(parameters, general), own)


def _refuse_useless(changes: Mapping[str, Any], kinds: set[str]) -> None:
    known = {name for kind in kinds for name in kind_named(kind).parameters.model_fields}
    for name in changes:
        if name not in kinds | known:
            raise KeyholeError(
                ErrorCode.INVALID_REQUEST,
                f"No probe of the suite has a parameter {name!r}.",
                f"Probes: {', '.join(sorted(kinds))}. Parameters: {', '.join(sorted(known))}.",
            )


def _changed_sweep(preset: Preset, changes: Mapping[str, Any]) -> Sweep:
    """The preset's sweep with changes of what all members share; an axis keeps its values."""
    assert preset.sweep is not None
    fields = preset.sweep.model_dump(mode="json")
    fields["parameters"] = _changed("training", preset.sweep.parameters, changes)
    try:
        return Sweep.model_validate(fields)
    except ValueError as error:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"With these parameters {preset.name} is no sweep: {_first(error)}.",
            f"What it sweeps over is shown by: keyhole presets {preset.name}",
        ) from error


def _of_sweep(
    name: str,
    sweep: Sweep,
    models: Sequence[str],
    dataset: str,
    later: Sequence[PlannedStage],
    terms: Mapping[str, Any],
) -> Plan:
    if len(models) != 1:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"A sweep trains one model; given are {len(models)}: {', '.join(models)}.",
            "Submit a sweep for each.",
        )
    try:
        members = list(sweep.members())
    except ValueError as error:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST, f"The sweep cannot be made: {error}.", "Change its axes."
        ) from error
    probes = [SuiteItem(kind="training", parameters=each.parameters, label=each.label[:120]) for each in members]
    first = PlannedStage(models=list(models), dataset=dataset, probes=probes, **terms)
    return Plan(name, [first, *later], PlannedSweep(sweep, members))


def _later(
    stages: Sequence[Stage], dataset: str, changes: Mapping[str, Any], terms: Mapping[str, Any]
) -> list[PlannedStage]:
    return [
        PlannedStage(
            models=stage.models,
            dataset=stage.dataset or dataset,
            probes=[changed_item(item, changes) for item in stage.probes],
            on_failure=stage.on_failure,
            **terms,
        )
        for stage in stages
    ]


def trains(stage: PlannedStage) -> bool:
    """Whether the stage makes runs."""
    return any(KINDS[item.kind].queue == "training" for item in stage.probes)


def _first(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    return errors()[0]["msg"].removeprefix("Value error, ") if errors else str(error)
