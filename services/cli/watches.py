"""Commands about watches: watch, watches."""

import json as json_module
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import output, parameters
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.rule_texts import GRAMMAR, parse
from services.contracts.training.numbers import METRICS
from services.contracts.watches import WatchDetail, WatchView

if TYPE_CHECKING:
    from services.client import Watch

ACTIONS = ("show", "stop", "resume", "delete")


def watch(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET|show|stop|resume|delete",
            help="run:ID, suite:ID, sweep:ID, path:DIR/* or hf:ORG/NAME@PATTERN. Or what to do with a watch.",
        ),
    ],
    watch_id: Annotated[int | None, typer.Argument(metavar="[ID]", min=1, help="With the latter: its number.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="When to raise an alert, e.g. 'entropy_nats head below 0.5'; repeatable. See `--rules`."),
    ] = None,
    probe: Annotated[list[str] | None, typer.Option(help="A kind that measures every new checkpoint.")] = None,
    preset: Annotated[str | None, typer.Option(help="The probes of a preset instead.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="What the probes measure on; the run's own data unless given.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the probes, e.g. length=256; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name of your own.")] = None,
    webhook: Annotated[str | None, typer.Option(help="An address that alerts are posted to.")] = None,
    new_only: Annotated[bool, typer.Option("--new-only", help="Leave the checkpoints that are there already.")] = False,
    poll: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="How often a folder or repository is looked at.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="No new checkpoints after this local time.")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Of the jobs: higher runs first.")] = 0,
    rules: Annotated[
        bool, typer.Option("--rules", is_eager=True, callback=lambda wanted: _grammar(wanted), help="How rules read.")
    ] = False,
    json: Json = False,
) -> None:
    """Submit probes for every new checkpoint by itself, and raise alerts by rules on what comes back.

    `keyhole watch run:7 --probe attention_profile --rule 'entropy_nats head below 0.5'`. Rules on numbers of the
    training itself need no probe: `--rule 'loss jump 0.5'`. Then: `keyhole alerts --follow`, `keyhole watch stop ID`.
    """
    if target in ACTIONS:
        _act(target, watch_id, json=json)
        return
    if watch_id is not None:
        raise typer.BadParameter(f"{target!r} is no action; actions are {', '.join(ACTIONS)}.", param_hint="TARGET")
    made = api().watch(
        target,
        rules=[_rule(text) for text in rule or ()],
        probes=probe or (),
        preset=preset,
        dataset=dataset,
        name=name,
        webhook=webhook,
        existing=not new_only,
        poll_s=poll,
        until=until.astimezone() if until else None,
        priority=priority,
        **parameters.parse(settings or []),
    )
    _told(made, "looks", json=json)
    if not json:
        output.message(
            f"See its alerts: keyhole alerts --watch {made.id} --follow   Stop it: keyhole watch stop {made.id}"
        )


def watches(
    search: Annotated[str | None, typer.Option(help="Part of name or target.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those that still look.")] = False,
    run: Annotated[int | None, typer.Option(min=1, help="Only those that look at this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List watches, newest first."""
    found = list(api().watches(text=search, active=True if active else None, run=run, limit=limit))
    if json:
        output.as_json(found)
        return
    output.table(
        ("id", "name", "target", "state", "checkpoints", "alerts", "unseen", "looked"),
        (
            (
                each.id,
                each.name,
                each.target,
                _state(each),
                f"{each.models_judged}/{each.models}",
                each.alerts,
                each.unacknowledged,
                output.ago(each.looked_at) if each.looked_at else None,
            )
            for each in found
        ),
        widest=50,
    )
    for each in found:
        if each.problem:
            output.message(f"Watch {each.id}: {each.problem}")


def _act(action: str, watch_id: int | None, *, json: bool) -> None:
    if watch_id is None:
        raise typer.BadParameter(f"Give the number of the watch to {action}.", param_hint="ID")
    found = api().watch_of(watch_id)
    if action == "delete":
        found.delete()
        if json:
            output.as_json({"id": watch_id, "deleted": True})
        else:
            output.data(f"Watch {watch_id} is deleted, with its alerts.")
        return
    if action == "stop":
        found.stop()
    elif action == "resume":
        found.resume()
    if action == "show" and not json:
        _page(found.detail)
    else:
        _told(found, _state(found.detail), json=json)


def _told(found: "Watch", state: str, *, json: bool) -> None:
    if json:
        output.as_json(found.detail)
    else:
        output.data(f"Watch {found.id}, {found.detail.name}, {state}.")


def _page(detail: WatchDetail) -> None:
    output.fields(
        [
            ("watch", f"{detail.id}, {detail.name}"),
            ("target", detail.target),
            ("state", _state(detail)),
            ("problem", detail.problem),
            ("probes", ", ".join(detail.probes) or None),
            ("dataset", detail.dataset),
            ("checkpoints", f"{detail.models_judged} of {detail.models} judged" if detail.models else None),
            ("without result", detail.models_failed or None),
            ("webhook", detail.webhook_host),
            ("submitted", f"{output.when(detail.created_at)} by {detail.submitted_by}"),
            ("looked", output.when(detail.looked_at)),
        ]
    )
    if detail.rules:
        output.data()
        output.table(
            ("rule", "alerts", "met now at"),
            ((each.text, each.alerts, f"{each.met_at} places") for each in detail.rules),
        )
    if detail.newest:
        output.data()
        output.table(
            ("checkpoint", "step", "suite", "state"),
            (
                (each.source, each.step, each.suite_id, each.problem or ("judged" if each.judged else "measured"))
                for each in detail.newest
            ),
            widest=70,
        )


def _state(watch: WatchView) -> str:
    return "looks" if watch.active else f"ended: {watch.ended}"


def _rule(text: str) -> dict[str, Any]:
    """A rule as an object: read here, so that its grammar is told without asking the API."""
    if text.lstrip().startswith("{"):
        try:
            return json_module.loads(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is no JSON: {error}.", param_hint="--rule") from error
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rule") from error


def _grammar(wanted: bool) -> None:
    if wanted:
        output.data(GRAMMAR)
        output.data("\nMetrics of the training (those of the probes: keyhole kinds):")
        output.table(
            ("metric", "by", "meaning"),
            ((name, ", ".join(metric.levels), metric.meaning) for name, metric in METRICS.items()),
        )
        raise typer.Exit()
