"""`keyhole up`, `down`, `status`, `doctor` and `psql`: the embedded stack on this machine.

What was asked for goes to stdout, what happens meanwhile to stderr. Errors are raised as KeyholeError; the command's
entry point prints them.
"""

import json
import os
import sys
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.cli.team_status import show_team_status
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import settings
from services.local.analyst_access import analyst_access, psql_program
from services.local.checkup import examine
from services.local.foreground import stay
from services.local.stack import LocalStack


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once everything answers.")] = False,
    as_json: output.Json = False,
) -> None:
    """Start PostgreSQL, Valkey, API, worker and dashboard on this machine, or what of them is not running."""
    stack = LocalStack(settings(), output.message)
    started = stack.up()
    addresses = stack.addresses()
    report = {
        "home": str(stack.home),
        "api_url": addresses.api_url,
        "dashboard_url": addresses.dashboard_url,
        "started": started,
    }
    if as_json:
        output.as_json(report)
    else:
        output.data(f"Keyhole {'is up' if started else 'was already up'} in {stack.home}")
        output.data(f"  dashboard  {addresses.dashboard_url}")
        output.data(f"  API        {addresses.api_url}/docs")
    if detach or not started:
        if not as_json:
            output.data("Stop it with: keyhole down")
        return
    if not as_json:
        output.data("Ctrl-C stops it; `keyhole up --detach` leaves it running.")
    sys.stdout.flush()
    stay(stack, output.message)


def down(as_json: output.Json = False) -> None:
    """Stop what `keyhole up` started: the worker first, whose shards go back; data stay."""
    stopped = LocalStack(settings(), output.message).down()
    if as_json:
        output.as_json({"stopped": stopped})
    else:
        output.data(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")


def status(as_json: output.Json = False) -> None:
    """Show each service of the embedded stack, or a team's API and what it needs; exit code 5 unless all answer."""
    configured = settings()
    if configured.database_url is not None or configured.api_url is not None:
        raise typer.Exit(show_team_status(as_json=as_json))
    stack = LocalStack(configured, output.message)
    states = stack.status()
    if as_json:
        _print_json([state.__dict__ for state in states])
    else:
        output.table(
            ("service", "state", "pid", "address"),
            [(state.name, state.word, state.pid or "", state.address) for state in states],
        )
        if any(state.pid is None for state in states):
            output.message("start what is missing with: keyhole up")
    if not all(state.answers and state.pid for state in states):
        raise typer.Exit(ExitCode.UNREACHABLE)


def doctor(as_json: output.Json = False) -> None:
    """Check this machine and the running stack, with the next step for whatever is wrong."""
    findings = []
    for finding in examine(settings()):
        findings.append(finding)
        if not as_json:
            typer.secho(f"{finding.state:<4}", nl=False, fg={"ok": "green", "warn": "yellow"}.get(finding.state, "red"))
            output.data(f" {finding.check}: {finding.message}")
            if finding.next_step:
                output.data(f"     {finding.next_step}")
    if as_json:
        _print_json([finding.__dict__ for finding in findings])
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(ExitCode.ERROR)


def psql(
    open_it: Annotated[bool, typer.Option("--open", help="Run psql instead of printing how to.")] = False,
    as_json: output.Json = False,
) -> None:
    """Print how to connect as the read-only role `analyst`, or open psql as that role."""
    access = analyst_access(settings())
    program = psql_program()
    if open_it:
        if program is None:
            raise KeyholeError(
                ErrorCode.NOT_FOUND,
                "There is no psql on this machine.",
                "Install PostgreSQL's client, or use: keyhole sql",
            )
        os.execve(  # noqa: S606  # no shell is the point
            program, ["psql", access.connection], dict(os.environ) | {"PGPASSFILE": str(access.password_file)}
        )
    if as_json:
        output.as_json({"url": access.url, "connection": access.connection, "password_file": str(access.password_file)})
        return
    output.data(f"PGPASSFILE={access.password_file} {program or 'psql'} '{access.connection}'")
    output.data(access.url)


def _print_json(value: Any) -> None:
    output.data(json.dumps(value, indent=2))
