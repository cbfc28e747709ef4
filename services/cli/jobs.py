"""Commands about jobs: submit, jobs, job, logs, cancel, retry, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import output, parameters, waiting
from services.cli.output import Json
from services.contracts.jobs import EventView
from services.contracts.states import JobState

if TYPE_CHECKING:
    from services.client import Keyhole

JobId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The job's number.")]


def api() -> "Keyhole":
    from services.client import Keyhole  # here: --help and completion need no HTTP client

    return Keyhole()


def submit(
    kind: Annotated[
        str, typer.Argument(metavar="KIND|suite", help="What to do; `keyhole kinds` lists them. Or: suite, see below.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="hf:ORG/NAME(@REVISION), path:DIR, builtin:NAME, checkpoint:ID or run:ID@STEP; to train from scratch "
            "config:NAME; of a suite several, or a series."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="hf:PATH?field=…, file:PATH, tokens:PATH or builtin:NAME.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter, e.g. queries.step=8; repeatable."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Of a suite: its probes and their settings; `keyhole presets` lists them.")
    ] = None,
    probe: Annotated[list[str] | None, typer.Option(help="Of a suite: a kind; repeatable.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; Ctrl-C stops waiting, not the job.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compute even if the same job already succeeded.")] = False,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher runs first.")] = 0,
    label: Annotated[str | None, typer.Option(help="A name of your own for the job.")] = None,
    time_limit: Annotated[int | None, typer.Option(min=1, metavar="SECONDS", help="Fail after so long.")] = None,
    json: Json = False,
) -> None:
    """Submit a job; the same job that already succeeded, waits or runs answers instead of a new one.

    `submit suite` submits several probes at once: those of a --preset, or each --probe, on every --model, which may be
    a series: hf:ORG/NAME@step* (revisions), path:DIR/* (folders), run:ID (checkpoints). `--set length=256` is for
    every probe that has the parameter, `--set buried_keys.top_k=3` for one.
    """
    if kind == "suite":
        from services.cli import suites

        suite = api().submit_suite(
            preset,
            model=model or (),
            dataset=dataset,
            probes=probe or (),
            label=label,
            priority=priority,
            force=force,
            time_limit_s=time_limit,
            **parameters.parse(settings or []),
        )
        suites.submitted(suite, wait=wait, json=json)
        return
    if preset or probe:
        raise typer.BadParameter(f"--preset and --probe are for `submit suite`, not for {kind!r}.")
    if model is None or len(model) != 1:
        raise typer.BadParameter(
            f"Give one model; a suite takes several. Given: {len(model or ())}.", param_hint="--model"
        )
    if dataset is None:
        raise typer.BadParameter("Give a data set, e.g. builtin:python-docs.", param_hint="--dataset")
    job = api().submit(
        kind,
        model=model[0],
        dataset=dataset,
        priority=priority,
        force=force,
        label=label,
        time_limit_s=time_limit,
        **parameters.parse(settings or []),
    )
    if wait:
        waiting.wait(job, json=json)
    elif json:
        output.as_json(job.detail)
    elif job.state.terminal:
        output.data(waiting.ending(job.detail))
    else:
        already = " already" if job.reused else ""
        position = job.detail.progress.queue_position
        place = f", number {position} in the queue" if position else ""
        output.data(f"Job {job.id} is{already} {job.state}{place}.")
        if job.detail.run_id is not None:
            output.message(f"Its run: keyhole run {job.detail.run_id}")
        output.message(f"Follow it: keyhole logs {job.id} --follow   Cancel it: keyhole cancel {job.id}")


def jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only this state; repeatable.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; repeatable.")] = None,
    model: Annotated[str | None, typer.Option(help="Part of the model source.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Part of the dataset source.")] = None,
    label: Annotated[str | None, typer.Option(help="Part of the label.")] = None,
    search: Annotated[str | None, typer.Option(help="Part of label, model or dataset.")] = None,
    submitted_by: Annotated[str | None, typer.Option(help="Name of the token.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    all_: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    found = list(
        api().jobs(
            kind=kind,
            state=[str(wanted) for wanted in state] if state else None,
            model=model,
            dataset=dataset,
            label=label,
            text=search,
            submitted_by=submitted_by,
            limit=None if all_ else limit,
        )
    )
    if json:
        output.as_json(found)
        return
    columns = ("id", "kind", "state", "shards", "rows", "model", "dataset", "submitted", "label")
    output.table(
        columns,
        (
            (
                each.id,
                each.kind,
                each.state,
                f"{each.progress.shards_done}/{each.progress.shards}",
                each.progress.rows,
                _short(each.model),
                _short(each.dataset),
                output.ago(each.created_at),
                each.label,
            )
            for each in found
        ),
    )
    if not all_ and len(found) == limit:
        output.message(f"The newest {limit}; --all or --limit N for more.")


def job(job_id: JobId, json: Json = False) -> None:
    """Show all that is known of one job: state, progress, attempts, environment, error with traceback."""
    from services.cli import job_page

    detail = api().job(job_id).detail
    if json:
        output.as_json(detail)
    else:
        job_page.show(detail)


def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Print the history of a job, with the end of the log of an attempt that failed."""
    found = api().job(job_id)
    try:
        for event in found.events() if follow else found.history():
            if json:
                output.json_line(event)
            else:
                output.data(_line(event))
    except KeyboardInterrupt:
        output.message(f"\nStopped following; job {job_id} goes on. Cancel it: keyhole cancel {job_id}")
        raise typer.Exit(130) from None


def cancel(job_id: JobId, json: Json = False) -> None:
    """Stop a job; what it has finished stays."""
    cancelled = api().job(job_id).cancel()
    if json:
        output.as_json(cancelled.detail)
    else:
        output.data(f"Job {job_id} is {cancelled.state}.")


def retry(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    json: Json = False,
) -> None:
    """Queue a failed or cancelled job again; what it has finished is not computed again."""
    again = api().job(job_id).retry()
    if wait:
        waiting.wait(again, json=json)
    elif json:
        output.as_json(again.detail)
    else:
        output.data(f"Job {job_id} is {again.state}.")


def delete(
    job_id: JobId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete a job that has ended, and all of its rows (scope admin)."""
    found = api().job(job_id)
    sweeps = found.detail.sweeps
    named = " and ".join(f"sweep {sweep}" for sweep in sweeps)
    if not yes:
        rows = found.detail.progress.rows
        lost = f" It is a member of {named}; the result will lack its seed." if sweeps else ""
        typer.confirm(f"Delete job {job_id} and its {rows:,} rows?{lost}", abort=True, err=True)
    found.delete()
    if json:
        output.as_json({"id": job_id, "deleted": True})
    else:
        output.data(f"Job {job_id} is deleted.")
        if sweeps:
            output.message(
                f"It was a member of {named}; the result lacks its seed now: keyhole sweep-result {sweeps[0]}"
            )


def _line(event: EventView) -> str:
    if event.type == "log":
        attempt = event.data.get("attempt")
        of_attempt = "" if attempt is None else f" of attempt {attempt}"
        return f"{output.when(event.at)}  log{of_attempt}\n{event.data.get('tail', '')}".rstrip()
    told = "  ".join(f"{name}={value}" for name, value in event.data.items() if value is not None)
    return f"{output.when(event.at)}  {event.type:<14} {told}".rstrip()


def _short(source: str, length: int = 40) -> str:
    return source if len(source) <= length else f"{source[: length // 2 - 1]}…{source[-length // 2 :]}"
