"""Commands about training runs: runs, run."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import output, waiting
from services.cli.exit_codes import ExitCode
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.runs import RunDetail, RunView

if TYPE_CHECKING:
    from services.client import Run

_LOSSES = ("loss_nats", "validation_loss_nats")
_CURVE_ROWS = 24  # of the table of losses; --csv has all


def runs(
    search: Annotated[str | None, typer.Option(help="Part of name, model or dataset.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Only this variant, e.g. control; repeatable.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only this state; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Only this seed.")] = None,
    suite: Annotated[int | None, typer.Option(min=1, help="Only runs of this suite.")] = None,
    sweep: Annotated[int | None, typer.Option(min=1, help="Only runs of this sweep.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List training runs, newest first."""
    found = list(
        api().runs(text=search, variant=variant, state=state, seed=seed, suite=suite, sweep=sweep, limit=limit)
    )
    if json:
        output.as_json(found)
        return
    output.table(
        ("run", "job", "name", "variant", "seed", "state", "steps", "validation", "best", "submitted"),
        (
            (
                each.id,
                each.job_id,
                each.name,
                each.variant,
                each.seed,
                each.state,
                _steps(each),
                output.loss(each.last_validation_loss_nats),
                output.loss(each.best_validation_loss_nats),
                output.ago(each.created_at),
            )
            for each in found
        ),
        widest=48,
    )


def run(
    run_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The run's number.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until its job has ended, and exit with its code.")] = False,
    metric: Annotated[
        list[str] | None, typer.Option(help="Numbers by step to show or write; repeatable. All, if written.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Write numbers by step; - is stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a training run: its losses by step, its checkpoints; or write its numbers as CSV."""
    found = api().run(run_id)
    code = ExitCode.OK
    if wait and found.detail.job_id is not None:
        code = waiting.until_ended(found.job)
        found.refresh()
    if csv is not None:
        _write(found, metric or (), csv)
    elif json:
        output.as_json(found.detail)
    else:
        _show(found.detail)
        _curves(found, metric)
        _checkpoints(found.detail)
    raise typer.Exit(code)


def _show(detail: RunDetail) -> None:
    output.fields(
        [
            ("run", detail.id),
            ("name", detail.name),
            ("job", detail.job_id),
            ("state", detail.state),
            ("phase", detail.phase if detail.state == "running" else None),
            ("steps", _steps(detail)),
            ("variant", detail.variant),
            ("seed", detail.seed),
            ("model", detail.model),
            ("dataset", detail.dataset),
            ("optimizer", detail.optimizer),
            ("learning rate", detail.learning_rate),
            ("weight decay", detail.weight_decay),
            ("validation loss", _at(detail.last_validation_loss_nats, detail.last_validation_step)),
            ("best", _at(detail.best_validation_loss_nats, detail.best_validation_step)),
            ("bits per byte", output.loss(detail.last_validation_bits_per_byte)),
            ("submitted", output.when(detail.created_at)),
            ("submitted by", detail.submitted_by),
            ("duration", output.duration(detail.duration_s)),
            ("error", f"{detail.error_message} ({detail.error_code})" if detail.error_code else None),
            ("numbers by step", ", ".join(detail.metrics) or None),
        ]
    )


def _curves(found: "Run", asked: Sequence[str] | None) -> None:
    """The numbers of the whole model by step, at some steps if there are many; the losses unless others are asked."""
    curves = {}
    for name in dict.fromkeys(asked or _LOSSES):
        curve = found.curve(name) if name in found.detail.metrics else None
        if curve is not None and not curve.empty:
            curves[name] = curve
        elif asked and curve is not None:
            output.message(f"{name} of run {found.id} is known only by layer or head; --csv FILE writes it.")
        elif asked:
            there = f"it has {', '.join(found.detail.metrics)}" if found.detail.metrics else "it has no numbers yet"
            output.message(f"Run {found.id} has no {name!r}; {there}.")
    steps = sorted({step for curve in curves.values() for step in curve.index})
    if not steps:
        return
    output.data()
    every = max(1, -(-len(steps) // _CURVE_ROWS))
    shown = [*steps[:-1:every], steps[-1]]
    output.table(("step", *curves), ((step, *(curve.get(step) for curve in curves.values())) for step in shown))


def _checkpoints(detail: RunDetail) -> None:
    if not detail.checkpoints:
        return
    output.data("\ncheckpoints")
    output.table(
        ("checkpoint", "source", "kept as", "validation", "MB", "resumable"),
        (
            (
                each.id,
                f"run:{detail.id}@{each.step}",
                ", ".join(each.reasons),
                output.loss(each.validation_loss_nats),
                round(each.bytes / 1e6, 1),
                "yes" if each.resumable else "",
            )
            for each in detail.checkpoints
        ),
    )


def _write(found: "Run", names: Sequence[str], path: Path) -> None:
    with found.metrics_file("csv", names) as body:
        if str(path) == "-":
            shutil.copyfileobj(body, sys.stdout.buffer)
            return
        with path.open("wb") as file:
            shutil.copyfileobj(body, file)
    output.message(f"Written: {path}")


def _steps(run: RunView) -> str | None:
    return f"{run.steps_done}/{run.steps}" if run.steps is not None else None


def _at(value: float | None, step: int | None) -> str | None:
    return output.loss(value, f" nats at step {step}")
