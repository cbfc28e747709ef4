"""The table of subcommands, and their loading: only the module of the command that runs is imported.

Migrations, PostgreSQL's driver and the HTTP client take a second to import; `keyhole jobs` needs only the last.
"""

import importlib
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

# help panel → command → where its function, or its own typer.Typer, is
PANELS: dict[str, dict[str, str]] = {
    "Jobs": {
        "submit": "services.cli.jobs:submit",
        "jobs": "services.cli.jobs:jobs",
        "job": "services.cli.jobs:job",
        "logs": "services.cli.jobs:logs",
        "cancel": "services.cli.jobs:cancel",
        "retry": "services.cli.jobs:retry",
        "delete": "services.cli.jobs:delete",
    },
    "Suites: several jobs at once": {
        "suites": "services.cli.suites:suites",
        "suite": "services.cli.suites:suite",
        "presets": "services.cli.suites:presets",
    },
    "Training": {
        "runs": "services.cli.runs:runs",
        "run": "services.cli.runs:run",
        "import-run": "services.cli.checkpoints:import_run",
        "checkpoints": "services.cli.checkpoints:checkpoints",
        "checkpoint": "services.cli.checkpoints:checkpoint",
        "checkpoint-export": "services.cli.checkpoints:checkpoint_export",
        "checkpoint-delete": "services.cli.checkpoints:checkpoint_delete",
        "sweep": "services.cli.sweeps:sweep",
        "sweeps": "services.cli.sweeps:sweeps",
        "sweep-result": "services.cli.sweeps:sweep_result",
    },
    "Watching": {
        "watch": "services.cli.watches:watch",
        "watches": "services.cli.watches:watches",
        "alerts": "services.cli.alerts:alerts",
    },
    "Kinds and results": {
        "kinds": "services.cli.kinds:kinds",
        "sql": "services.cli.results:sql",
        "export": "services.cli.results:export",
    },
    "The stack on this machine": {
        "up": "services.cli.stack:up",
        "down": "services.cli.stack:down",
        "status": "services.cli.stack:status",
        "doctor": "services.cli.stack:doctor",
        "psql": "services.cli.stack:psql",
    },
    "A team's services": {
        "token": "services.cli.tokens:app",
        "serve": "services.cli.serve:serve",
        "migrate": "services.cli.serve:migrate",
    },
}
_TARGETS = {name: (panel, target) for panel, commands in PANELS.items() for name, target in commands.items()}


class Commands(TyperGroup):
    """A group that finds its subcommands in the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_TARGETS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _TARGETS:
            return None
        panel, target = _TARGETS[cmd_name]
        module, _, attribute = target.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = get_command(found)
        command.name = cmd_name
        command.rich_help_panel = panel  # type: ignore[attr-defined]  # Typer's commands and groups have it
        return command
