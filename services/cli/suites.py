"""Commands about suites: what `submit suite` does, suites, suite, presets."""

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.states import JobState
from services.contracts.suites import SuiteDetail, SuiteJob, SuiteView

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
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every job has ended.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop the jobs that have not ended.")] = False,
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
        output.table(("preset", "title", "probes"), ((each.name, each.title, len(each.probes)) for each in found))
    else:
        (preset,) = found
        output.data(f"{preset.title}\n\n{preset.about}\n")
        output.fields(
            [
                ("models", ", ".join(preset.models)),
                ("dataset", preset.dataset),
                ("also", ", ".join(preset.also) or None),
            ]
        )
        for item in preset.probes:
            output.data(f"\n{item.kind}")
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
    states = {job.state for job in suite.detail.members}
    if JobState.FAILED in states:
        raise typer.Exit(ExitCode.JOB_FAILED)
    raise typer.Exit(ExitCode.JOB_CANCELLED if JobState.CANCELLED in states else ExitCode.OK)


def _teller() -> Any:
    """Prints a line whenever a job has changed: for logs, where a bar would be noise."""
    known: dict[int, str] = {}

    def tell(detail: SuiteDetail) -> None:
        for job in detail.members:
            now = _doing(job)
            if known.get(job.id) != now:
                known[job.id] = now
                output.message(f"  {datetime.now():%H:%M:%S} job {job.id} {job.kind}: {now}")

    return tell


def _doing(job: SuiteJob) -> str:
    """State, and what a running job is at."""
    if job.state is not JobState.RUNNING:
        return f"{job.state}{' before' if job.reused else ''}"
    done = f", {job.progress.shards_done} of {job.progress.shards} shards" if job.progress.shards_done else ""
    return f"{job.progress.phase}{done}"


def _table(detail: SuiteDetail) -> None:
    output.data(f"Suite {detail.id}, {detail.name}: {_states(detail)}.")
    output.table(
        ("job", "kind", "state", "shards", "rows", "took", "model"),
        (
            (
                job.id,
                job.kind,
                _doing(job),
                f"{job.progress.shards_done}/{job.progress.shards}",
                f"{job.progress.rows:,}",
                output.duration(job.duration_s),
                job.model,
            )
            for job in detail.members
        ),
        widest=60,
    )


def _states(suite: SuiteView) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(suite.jobs_by_state.items())) or "no jobs left"
