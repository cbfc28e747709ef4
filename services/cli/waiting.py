"""Wait for a job on the command line: bar on stderr, the result on stdout, the exit code of how it ended."""

import sys
from typing import TYPE_CHECKING

import typer

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.contracts.jobs import JobDetail
from services.contracts.states import JobState

if TYPE_CHECKING:
    from services.client import Job

_CODES = {JobState.FAILED: ExitCode.JOB_FAILED, JobState.CANCELLED: ExitCode.JOB_CANCELLED}


def wait(job: "Job", *, json: bool) -> None:
    """Wait for the job's end, tell of it, and exit with its code."""
    code = until_ended(job)
    if json:
        output.as_json(job.detail)
    else:
        output.data(ending(job.detail))
    raise typer.Exit(code)


def until_ended(job: "Job") -> ExitCode:
    """Wait for the job's end; returns the exit code of how it ended. Ctrl-C stops the waiting, not the job."""
    from services.client import JobCancelled, JobFailed

    if not job.state.terminal:
        output.message(f"Job {job.id} is {job.state}; waiting for it.")
    try:
        follow(job)
        job.wait(progress=False)
    except (JobFailed, JobCancelled):
        pass  # told by the caller, from the job itself
    except KeyboardInterrupt:
        output.message(
            f"\nStopped waiting; job {job.id} goes on. "
            f"Follow it: keyhole logs {job.id} --follow   Cancel it: keyhole cancel {job.id}"
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    return _CODES.get(job.state, ExitCode.OK)


def follow(job: "Job") -> None:
    """Until the job has ended: a bar on a terminal; elsewhere, in a log say, a line for each thing that happens."""
    if sys.stderr.isatty():
        job.wait()
        return
    for event in job.events() if not job.state.terminal else ():
        if event.type == "progress":
            text = f"{event.data['shards_done']} of {event.data['shards']} shards, {event.data['rows']:,} rows"
        else:
            text = str(event.data.get("phase") or event.type).replace("_", " ")
        output.message(f"  {event.at.astimezone():%H:%M:%S} {text}")


def ending(job: JobDetail) -> str:
    """How a job ended, in a few lines."""
    if job.state is JobState.SUCCEEDED:
        took = output.duration(job.duration_s)
        if job.reused:
            of_run = f", run {job.run_id}" if job.run_id is not None else ""
            return (
                f"Job {job.id}{of_run} had succeeded already ({job.progress.rows:,} rows); --force computes it again."
            )
        if job.run_id is not None:
            return f"Job {job.id} succeeded in {took}. Its run: keyhole run {job.run_id}"
        return f"Job {job.id} succeeded: {job.progress.rows:,} rows in {took}."
    if job.error is None:
        return f"Job {job.id} is {job.state}."
    hint = f"\n{job.error.hint}" if job.error.hint else ""
    return f"Job {job.id} {job.state}: {job.error.message} ({job.error.code}){hint}\nTraceback: keyhole job {job.id}"
