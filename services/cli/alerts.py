"""``keyhole alerts``: what the rules of watches have raised."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.watches import AlertView


def alerts(
    watch: Annotated[int | None, typer.Option(min=1, help="Only of this watch.")] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Only about this run.")] = None,
    metric: Annotated[str | None, typer.Option(help="Only on this metric.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Only in this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only of heads of this number.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only raised at this local time or later.")] = None,
    unseen: Annotated[bool, typer.Option("--unseen", help="Only those that nobody has acknowledged.")] = False,
    acknowledge: Annotated[
        list[int] | None, typer.Option("--acknowledge", metavar="ID", help="Say that this alert was seen; repeatable.")
    ] = None,
    acknowledge_all: Annotated[
        bool, typer.Option("--acknowledge-all", help="The same of all alerts of --watch.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing what is raised from now on.")] = False,
    json: Json = False,
) -> None:
    """List alerts, newest first; or follow them as they are raised."""
    if acknowledge or acknowledge_all:
        if acknowledge_all and watch is None:
            raise typer.BadParameter("Say of which watch: --watch ID.", param_hint="--acknowledge-all")
        seen = api().acknowledge(acknowledge or (), watch=watch if acknowledge_all else None)
        if json:
            output.as_json({"acknowledged": seen})
        else:
            output.data(f"{seen} alerts acknowledged.")
        return
    if follow:
        if since is not None or unseen:
            raise typer.BadParameter("--since and --unseen are of the list, not of what is followed.")
        _follow(api().follow_alerts(watch=watch, run=run, metric=metric, layer=layer, head=head), json=json)
        return
    found = list(
        api().alerts(
            watch=watch,
            run=run,
            metric=metric,
            layer=layer,
            head=head,
            since=since.astimezone() if since else None,
            acknowledged=False if unseen else None,
            limit=limit,
        )
    )
    if json:
        output.as_json(found)
        return
    output.table(
        ("id", "raised", "watch", "run", "job", "step", "seen", "message"),
        (
            (
                each.id,
                output.ago(each.created_at),
                each.watch_id,
                each.run_id,
                each.job_id,
                each.step,
                "yes" if each.acknowledged_at else "no",
                each.message,
            )
            for each in found
        ),
        widest=100,
    )


def _follow(raised: Iterable[AlertView], *, json: bool) -> None:
    try:
        for each in raised:
            if json:
                output.json_line(each)
            else:
                about = f"watch {each.watch_id}" + (f", run {each.run_id}" if each.run_id else "")
                output.data(f"{output.when(each.created_at)}  alert {each.id}, {about}: {each.message}")
                sys.stdout.flush()  # whoever follows through a pipe gets it now
    except KeyboardInterrupt:
        output.message("\nStopped following; the watches go on.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
