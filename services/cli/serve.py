"""`keyhole migrate` and `keyhole serve …`: the services of a team, each started by hand or by a container.

`serve` replaces its own process by the service, so that signals and exit codes are the service's own.
"""

import os
import sys
from enum import StrEnum
from typing import Annotated
from urllib.parse import unquote, urlsplit

import psycopg
import typer
from psycopg.conninfo import make_conninfo

from db import migrate as migrations
from db.connection import connect
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings, settings
from services.local import child_services, first_token
from services.local import database_owner as owner_role


class ServiceName(StrEnum):
    API = "api"
    WORKER = "worker"
    RECONCILER = "reconciler"
    DASHBOARD = "dashboard"


def serve(
    service: Annotated[ServiceName, typer.Argument(help="The service to run in this process.")],
) -> None:
    """Run one service against KEYHOLE_DATABASE_URL and KEYHOLE_BROKER_URL, until it is stopped."""
    configured = settings()
    needed = {
        ServiceName.API: ("database_url", "analyst_url", "broker_url"),
        ServiceName.WORKER: ("database_url", "broker_url"),
        ServiceName.RECONCILER: ("database_url", "broker_url"),
        ServiceName.DASHBOARD: ("analyst_url", "api_url"),
    }[service]
    missing = [f"KEYHOLE_{name.upper()}" for name in needed if getattr(configured, name) is None]
    if missing:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"`keyhole serve {service}` needs {' and '.join(missing)}.",
            "Set them (README, For a team), or let `keyhole up` start everything on this machine.",
        )
    if service is ServiceName.API:
        _refuse_open_address(configured)
    command = {
        ServiceName.API: lambda: child_services.api_command(configured.host, configured.api_port),
        ServiceName.WORKER: lambda: child_services.WORKER,
        ServiceName.RECONCILER: lambda: child_services.RECONCILER,
        ServiceName.DASHBOARD: lambda: child_services.dashboard_command(configured.host, configured.dashboard_port),
    }[service]()
    sys.stdout.flush()
    os.execve(command[0], command, child_services.environment_for(service, os.environ))  # noqa: S606  # no shell is the point


def migrate() -> None:
    """Bring the database of KEYHOLE_DATABASE_URL to the schema of this version. Safe at every start.

    With KEYHOLE_SUPERUSER_URL the role, the database and what only a superuser can close to analysts are made too; the
    password in KEYHOLE_ANALYST_URL becomes the analyst's; KEYHOLE_ADMIN_TOKEN becomes the first token.
    """
    configured = settings()
    if configured.database_url is None:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            "`keyhole migrate` needs KEYHOLE_DATABASE_URL.",
            "The embedded stack upgrades its own database at `keyhole up`.",
        )
    url = configured.database_url.get_secret_value()
    superuser_url = os.environ.get("KEYHOLE_SUPERUSER_URL")
    try:
        parts = urlsplit(url)
        name, user = parts.path.lstrip("/") or owner_role.DATABASE, unquote(parts.username or owner_role.OWNER)
        if superuser_url:
            owner_role.create(superuser_url, unquote(parts.password or ""), user, name)
        analyst_url = configured.analyst_url
        password = unquote(urlsplit(analyst_url.get_secret_value()).password or "") if analyst_url else ""
        warnings = migrations.upgrade(url, password or None)
        if superuser_url:
            warnings = migrations.harden(make_conninfo(superuser_url, dbname=name))
        first_token.store(url, os.environ.get("KEYHOLE_ADMIN_TOKEN"))
    except psycopg.OperationalError as error:
        raise _unreachable(error) from error
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"The database has schema {migrations.head()}.", err=True)


def _refuse_open_address(configured: Settings) -> None:
    """Nobody listens beyond this machine while there is no token that could be asked for."""
    from services.api.auth import check_bind_address  # here: FastAPI is slow to import, and only this needs it

    assert configured.database_url is not None
    try:
        with connect(configured.database_url.get_secret_value()) as conn:
            check_bind_address(configured.host, conn)
    except psycopg.OperationalError as error:
        raise _unreachable(error) from error


def _unreachable(error: psycopg.Error) -> KeyholeError:
    return KeyholeError(
        ErrorCode.UNAVAILABLE, f"The database does not answer: {error}", "Check KEYHOLE_DATABASE_URL and the server."
    )
