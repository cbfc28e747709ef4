"""Commands about sweeps: sweep, sweeps, sweep-result."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import axes, output, parameters, suites
from services.cli.exit_codes import ExitCode
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.states import JobState
from services.contracts.sweeps import SweepDetail, SweepDifference, SweepMember, SweepSetting, SweepView
from services.contracts.training.sweep import settings_in_words

if TYPE_CHECKING:
    from services.client import Sweep

_SHOWN = 5e-5  # nats; less would read as 0.0000


def sweep(
    model: Annotated[str, typer.Option(help="config:NAME to train from scratch, or a model to tune.")],
    dataset: Annotated[str, typer.Option(help="hf:PATH?field=…, file:PATH, tokens:PATH or builtin:NAME.")],
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="Values of a parameter, e.g. optimizer.learning_rate=1e-3,3e-3; with --random also a range: "
            "1e-4..1e-2, or linear:0..100. Repeatable.",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="control, natq, natq+qk_norm, or JSON with options; repeatable. Without: control."),
    ] = None,
    seed: Annotated[str, typer.Option(metavar="SEED,…", help="Two or more tell differences from noise.")] = "0",
    random: Annotated[
        int | None, typer.Option(min=1, metavar="SETTINGS", help="So many settings by chance, not all of them.")
    ] = None,
    search_seed: Annotated[int, typer.Option(min=0, help="Of --random: seed of the choice.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of all members, e.g. steps=500; repeatable."),
    ] = None,
    stop_after: Annotated[
        str | None, typer.Option(metavar="STEP,…", help="Give up hopeless settings at these steps, each a validation.")
    ] = None,
    worse_by: Annotated[
        float | None, typer.Option(metavar="NATS", help="With --stop-after: hopeless is so much above the best.")
    ] = None,
    keep_fraction: Annotated[
        float | None, typer.Option(metavar="SHARE", help="With --stop-after: hopeless is beyond the best such share.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; Ctrl-C stops waiting, not the jobs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Train even what the same job already trained.")] = False,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher runs first.")] = 0,
    label: Annotated[str | None, typer.Option(help="A name of your own for the sweep.")] = None,
    time_limit: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="A member fails after so long.")
    ] = None,
    json: Json = False,
) -> None:
    """Train one model in several settings, with several variants and seeds.

    The result is each variant's best setting by mean final validation loss over the seeds, the noise between seeds, and
    whether the differences between variants exceed it.
    """
    stopping: dict[str, Any] | None = None
    if stop_after is not None:
        stopping = {"after_steps": axes.parse_whole(stop_after, "--stop-after")}
        stopping |= {"worse_by_nats": worse_by, "keep_fraction": keep_fraction}
    elif worse_by is not None or keep_fraction is not None:
        raise typer.BadParameter("--worse-by and --keep-fraction need the steps to look at.", param_hint="--stop-after")
    found = api().sweep(
        model=model,
        dataset=dataset,
        axes=axes.parse_axes(axis or ()),
        variants=axes.parse_variants(variant or ["control"]),
        seeds=axes.parse_whole(seed, "--seed"),
        random=random,
        search_seed=search_seed,
        early_stopping=stopping,
        label=label,
        priority=priority,
        force=force,
        time_limit_s=time_limit,
        **parameters.parse(settings or []),
    )
    if wait:
        _wait(found, json=json)
    elif json:
        output.as_json(found.detail)
    else:
        _show(found.detail)
        output.message(
            f"Follow it: keyhole sweep-result {found.id} --wait   "
            f"Cancel it: keyhole suite {found.detail.suite_id} --cancel"
        )


def sweeps(
    search: Annotated[str | None, typer.Option(help="Part of the name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List sweeps, newest first."""
    found = list(api().sweeps(text=search, limit=limit))
    if json:
        output.as_json(found)
        return
    output.table(
        ("id", "name", "suite", "runs", "states", "model", "submitted"),
        (
            (
                each.id,
                each.name,
                each.suite_id,
                each.runs,
                _states(each),
                each.model,
                output.ago(each.created_at),
            )
            for each in found
        ),
        widest=60,
    )


def sweep_result(
    sweep_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="The sweep's number.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every member has ended.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Show every run, not only settings.")] = False,
    json: Json = False,
) -> None:
    """Show what a sweep found: settings, each variant's best, seed noise, differences."""
    found = api().sweep_result(sweep_id)
    if wait:
        _wait(found, json=json, members=members)
    elif json:
        output.as_json(found.detail)
    else:
        _show(found.detail, members=members)


def _wait(sweep: "Sweep", *, json: bool, members: bool = False) -> None:
    """Wait for the end and show the result. A member that diverged or was given up is a result, no failure."""
    try:
        suites.follow(sweep.suite)
    except KeyboardInterrupt:
        output.message(f"\nStopped waiting; sweep {sweep.id} goes on. Look at it: keyhole sweep-result {sweep.id}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    detail = sweep.refresh().detail
    if json:
        output.as_json(detail)
    else:
        _show(detail, members=members)
    if any(each.state is JobState.FAILED and each.error_code != "diverged" for each in detail.members):
        raise typer.Exit(ExitCode.JOB_FAILED)
    cancelled = any(each.state is JobState.CANCELLED and each.stopped is None for each in detail.members)
    raise typer.Exit(ExitCode.JOB_CANCELLED if cancelled else ExitCode.OK)


def _show(detail: SweepDetail, *, members: bool = False) -> None:
    output.data(f"Sweep {detail.id}, {detail.name}: {_states(detail)}.")
    if members:
        output.table(
            ("run", "job", "variant", "setting", "seed", "state", "steps", "final loss", "best loss"),
            map(_member, detail.members),
            widest=60,
        )
    else:
        marks = _marks(detail)
        output.table(
            ("variant", "setting", "seeds", "mean loss", "sd", ""),
            (_setting(each, marks.get((each.variant, str(each.setting)), "")) for each in detail.settings),
            widest=60,
        )
    if detail.noise is not None:
        noise = detail.noise
        output.data(f"Seed noise: {noise.sd_nats:.4f} nats (one sd, {noise.degrees_of_freedom} degrees of freedom).")
    if detail.best and detail.lacking is not None:
        output.data(detail.lacking)
    for each in detail.differences:
        output.data(_difference(each))


def _states(sweep: SweepView) -> str:
    if not sweep.deleted:
        return output.states(sweep.jobs_by_state)
    left = f"{output.states(sweep.jobs_by_state)}, " if sweep.jobs_by_state else ""
    return f"{left}{sweep.deleted} deleted"


def _marks(detail: SweepDetail) -> dict[tuple[str, str], str]:
    """What is told of each variant's setting of least mean: it is the best only if chance does not explain its lead."""
    leads = {lead.variant: lead for lead in detail.leads}
    marks = {}
    for each in detail.best:
        lead = leads.get(each.variant)
        if lead is not None and lead.verdict == "within noise":
            mark = f"least, by {lead.lead_nats:.4f}: within noise" if lead.lead_nats >= _SHOWN else "least, as others"
        else:
            mark = "best" if lead is not None else "least"
        marks[each.variant, str(each.setting)] = mark
    return marks


def _setting(each: SweepSetting, mark: str) -> tuple[Any, ...]:
    return (
        each.variant,
        ", ".join(settings_in_words(each.setting)),
        f"{len(each.losses_nats)}/{each.seeds}",
        output.loss(each.mean_nats),
        output.loss(each.sd_nats),
        mark,
    )


def _member(each: SweepMember) -> tuple[Any, ...]:
    state = "given up" if each.stopped is not None else each.error_code or str(each.state)
    return (
        each.run_id,
        each.job_id,
        each.variant,
        ", ".join(settings_in_words(each.setting)),
        each.seed,
        state,
        "" if each.steps is None else f"{each.steps_done}/{each.steps}",
        output.loss(each.final_validation_loss_nats),
        output.loss(each.best_validation_loss_nats),
    )


def _difference(each: SweepDifference) -> str:
    error = "" if each.standard_error_nats is None else f" ± {each.standard_error_nats:.4f}"
    if abs(each.difference_nats) < _SHOWN:
        return f"{each.first} and {each.second} end at the same loss to 0.0001 nats{error}: {each.reason}."
    return f"{each.second} − {each.first}: {each.difference_nats:+.4f}{error} nats, {each.verdict}: {each.reason}."
