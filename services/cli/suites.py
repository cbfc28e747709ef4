"""Commands about suites: what `submit suite` does, suites, suite, presets."""

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.states import JobState
from services.contracts.suites import (
    Preset,
    StageState,
    StageView,
    SuiteDetail,
    SuiteItem,
    SuiteJob,
    SuiteView,
)
from services.contracts.training.sweep import Sweep, variant_labels

if TYPE_CHECKING:
    from services.client import Suite


def submitted(suite: "Suite", *, wait: bool, json: bool) -> None:
    """Tell of a suite that was just submitted, and wait for its end if asked to."""
    if not wait:
        if json:
            output.as_json(suite.detail)
            return
        _table(suite.detail)
        if not suite.detail.ended:
            output.message(f"Follow it: keyhole suite {suite.id} --wait   Cancel it: keyhole suite {suite.id} --cancel")
        return
    _wait(suite, json=json)


def suites(
    search: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List suites, newest first."""
    found = list(api().suites(text=search, limit=limit))
    if json:
        output.as_json(found)
        return
    output.table(
        ("id", "name", "models", "jobs", "shards", "states", "submitted"),
        (
            (
                each.id,
                each.name,
                each.models,
                each.jobs,
                f"{each.shards_done}/{each.shards}",
                _states(each),
                output.ago(each.created_at),
            )
            for each in found
        ),
        widest=60,
    )


def suite(
    suite_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The suite's number.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job of every stage has ended.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop the jobs that have not ended, and what follows.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a suite with its jobs; wait for it, or cancel it."""
    found = api().suite(suite_id)
    if cancel:
        found.cancel()
    if wait:
        _wait(found, json=json)
    elif json:
        output.as_json(found.detail)
    else:
        _table(found.detail)


def presets(
    name: Annotated[str | None, typer.Argument(help="Show all of this one.")] = None,
    json: Json = False,
) -> None:
    """List the presets: suites with a name, such as the settings behind a figure of the article."""
    found = [each for each in api().presets() if name is None or name in (each.name, *each.also)]
    if name is not None and not found:
        raise typer.BadParameter(f"There is no preset {name!r}; `keyhole presets` lists them.", param_hint="NAME")
    if json:
        output.as_json(found)
    elif name is None:
        output.table(("preset", "title", "jobs"), ((each.name, each.title, _kinds(each)) for each in found), widest=80)
    else:
        _preset(found[0])


def _kinds(preset: Preset) -> str:
    """How many jobs, or probes for each model, in each stage."""
    first = f"sweep of {sum(1 for _ in preset.sweep.members())}" if preset.sweep else str(len(preset.probes))
    return ", then ".join([first, *(str(len(stage.probes)) for stage in preset.stages)])


def _preset(preset: Preset) -> None:
    output.data(f"{preset.title}\n\n{preset.about}\n")
    output.fields(
        [("models", ", ".join(preset.models)), ("dataset", preset.dataset), ("also", ", ".join(preset.also) or None)]
    )
    if preset.sweep is not None:
        output.data("\nsweep of training")
        output.fields((f"  {name}", value) for name, value in _sweep(preset.sweep))
    _items(preset.probes)
    for number, stage in enumerate(preset.stages, start=1):
        failed = ", whatever failed before" if stage.on_failure == "continue" else ""
        output.data(f"\nStage {number}, of {', '.join(stage.models)}{failed}")
        if stage.dataset is not None:
            output.fields([("  dataset", stage.dataset)])
        _items(stage.probes)


def _sweep(sweep: Sweep) -> Iterator[tuple[str, Any]]:
    yield from output.leaves(sweep.parameters)
    yield from ((name, axis) for name, axis in output.leaves(sweep.model_dump(mode="json")["axes"]))
    yield "variants", ", ".join(variant_labels(sweep.variants))
    yield from output.leaves(
        sweep.model_dump(mode="json", exclude_defaults=True, exclude={"parameters", "axes", "variants"})
    )


def _items(probes: Sequence[SuiteItem]) -> None:
    for item in probes:
        output.data(f"\n{item.kind}{f', {item.label}' if item.label else ''}")
        own = {"model": item.model, "dataset": item.dataset}
        output.fields((f"  {name}", value) for name, value in own.items() if value is not None)
        output.fields((f"  {name}", value) for name, value in output.leaves(item.parameters))


def follow(suite: "Suite") -> None:
    """Until every job has ended: a bar on a terminal; elsewhere, in a log say, a line for each change of state."""
    from services.client import SuiteFailed

    try:
        if sys.stderr.isatty():
            suite.wait()
        else:
            suite.follow(_teller())
    except SuiteFailed:
        pass  # whoever asked looks at the jobs


def _wait(suite: "Suite", *, json: bool) -> None:
    try:
        follow(suite)
    except KeyboardInterrupt:
        output.message(f"\nStopped waiting; suite {suite.id} goes on. Cancel it: keyhole suite {suite.id} --cancel")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if json:
        output.as_json(suite.detail)
    else:
        _table(suite.detail)
        for job in suite.detail.members:
            if job.error is not None:
                output.message(f"Job {job.id} ({job.kind}) failed: {job.error.message} {job.error.hint}".rstrip())
    states = {job.state for job in suite.detail.members if job.fell_short}
    if JobState.FAILED in states:
        raise typer.Exit(ExitCode.JOB_FAILED)
    skipped = bool(suite.detail.skipped)
    raise typer.Exit(ExitCode.JOB_CANCELLED if skipped or JobState.CANCELLED in states else ExitCode.OK)


def _teller() -> Any:
    """Prints a line whenever a job or a stage has changed: for logs, where a bar would be noise."""
    known: dict[int, str] = {}
    stages: dict[int, str] = {}

    def tell(detail: SuiteDetail) -> None:
        for stage in detail.stages:
            now = _stage(stage)
            if stages.setdefault(stage.number, now) != now:
                stages[stage.number] = now
                output.message(f"  {datetime.now():%H:%M:%S} stage {stage.number}: {now}")
        for job in detail.members:
            now = _doing(job)
            if known.get(job.id) != now:
                known[job.id] = now
                output.message(f"  {datetime.now():%H:%M:%S} job {job.id} {job.kind}: {now}")

    return tell


def _doing(job: SuiteJob) -> str:
    """State, and what a running job is at."""
    if job.stopped is not None:
        return "given up"
    if job.state is not JobState.RUNNING:
        return f"{job.state}{' before' if job.reused else ''}"
    done = f", {job.progress.shards_done} of {job.progress.shards} shards" if job.progress.shards_done else ""
    return f"{job.progress.phase}{done}"


def _table(detail: SuiteDetail) -> None:
    output.data(f"Suite {detail.id}, {detail.name}: {_states(detail)}.")
    staged = bool(detail.stages)
    output.table(
        (*(("stage",) if staged else ()), "job", "kind", "state", "shards", "rows", "took", "what"),
        (
            (
                *((job.stage,) if staged else ()),
                job.id,
                job.kind,
                _doing(job),
                f"{job.progress.shards_done}/{job.progress.shards}",
                f"{job.progress.rows:,}",
                output.duration(job.duration_s),
                _what(job),
            )
            for job in detail.members
        ),
        widest=60,
    )
    for stage in detail.stages:
        if stage.state is not StageState.SUBMITTED:
            output.data(
                f"Stage {stage.number}, {', '.join(stage.kinds)} of {', '.join(stage.models)}: {_stage(stage)}."
            )
    if detail.sweep_id is not None:
        output.message(f"What the sweep found: keyhole sweep-result {detail.sweep_id}")


def _what(job: SuiteJob) -> str:
    """The model, and of a training what tells it from the others of the suite."""
    told = (job.label or "").partition(" · ")[2]
    return told if job.kind == "training" and told else job.model


def _stage(stage: StageView) -> str:
    return f"{stage.state}, {stage.detail}".rstrip(".") if stage.detail else str(stage.state)


def _states(suite: SuiteView) -> str:
    states = output.states(suite.jobs_by_state)
    waiting = suite.stages_waiting
    return f"{states}, {waiting} {'stages wait' if waiting > 1 else 'stage waits'}" if waiting else states
