"""The processes of the embedded stack besides PostgreSQL and Valkey: how each is started and asked."""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from db.repositories import workers
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.local.addresses import port_of
from services.local.stack_file import StackFile

# -P: the working directory is not searched for modules.
PYTHON = (sys.executable, "-P", "-m")
WORKER_FRESH_S = 30.0  # a worker tells of its life every ten seconds


@dataclass(frozen=True)
class ChildService:
    """One process. ``answers`` is asked until true after a start; ``pid`` of the process is its argument."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    answers: Callable[[int], bool]
    start_limit_s: float


def child_services(settings: Settings, stack: StackFile) -> list[ChildService]:
    """API, reconciler, worker and dashboard, in the order of starting; each gets only the secrets it needs."""
    values = os.environ | {
        "KEYHOLE_HOME": str(settings.home),
        "KEYHOLE_DATABASE_URL": stack.database_url,
        "KEYHOLE_ANALYST_URL": stack.analyst_url,
        "KEYHOLE_BROKER_URL": stack.broker_url,
        "KEYHOLE_API_URL": stack.api_url,
    }
    api_port, dashboard_port = port_of(stack.api_url), port_of(stack.dashboard_url)
    return [
        ChildService(
            "api",
            api_command(settings.host, api_port),
            environment_for("api", values),
            lambda pid: _http_ok(f"{stack.api_url}/v1/health/ready"),
            start_limit_s=60,
        ),
        ChildService(
            "reconciler", RECONCILER, environment_for("reconciler", values), lambda pid: True, start_limit_s=10
        ),
        ChildService(
            "worker",
            WORKER,
            environment_for("worker", values),
            lambda pid: _worker_seen(stack.database_url, pid),
            start_limit_s=90,
        ),
        ChildService(
            "dashboard",
            dashboard_command("127.0.0.1", dashboard_port),
            environment_for("dashboard", values),
            lambda pid: _http_ok(f"{stack.dashboard_url}/_stcore/health"),
            start_limit_s=60,
        ),
    ]


WORKER = (*PYTHON, "workers.start")
RECONCILER = (*PYTHON, "workers.reconciler")
_SECRETS = {
    "KEYHOLE_DATABASE_URL": {"api", "reconciler", "worker"},
    "KEYHOLE_BROKER_URL": {"api", "reconciler", "worker"},
    "KEYHOLE_ANALYST_URL": {"api", "dashboard"},
    "KEYHOLE_SUPERUSER_URL": set(),
    "KEYHOLE_TOKEN": set(),
    "KEYHOLE_ADMIN_TOKEN": set(),
}


def environment_for(service: str, values: Mapping[str, str]) -> dict[str, str]:
    """``values`` without the secrets that ``service`` has no use for."""
    kept = {name: value for name, value in values.items() if service in _SECRETS.get(name, {service})}
    return kept | {"PYTHONUNBUFFERED": "1"}


def api_command(host: str, port: int) -> tuple[str, ...]:
    factory = ("services.api.app:create_app", "--factory", "--no-access-log")
    return (*PYTHON, "uvicorn", *factory, "--host", host, "--port", str(port), "--timeout-graceful-shutdown", "5")


def dashboard_command(host: str, port: int) -> tuple[str, ...]:
    options = ("--server.headless", "true", "--browser.gatherUsageStats", "false")
    address = ("--server.address", host, "--server.port", str(port))
    return (*PYTHON, "streamlit", "run", str(dashboard_page()), *options, *address)


def dashboard_page() -> Path:
    """dashboard/app.py, found without importing it: services never import the dashboard."""
    spec = importlib.util.find_spec("dashboard")
    if spec is None or not spec.submodule_search_locations:
        raise KeyholeError(ErrorCode.UNAVAILABLE, "The dashboard is not installed.", "Run `make setup`.")
    return Path(next(iter(spec.submodule_search_locations))) / "app.py"


def _http_ok(url: str) -> bool:
    try:
        # a proxy from the environment has no business between two processes of one machine
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _worker_seen(database_url: str, pid: int) -> bool:
    try:
        with psycopg.connect(database_url, autocommit=True, connect_timeout=5) as conn:
            rows = workers.all_workers(conn)
    except psycopg.Error:
        return False
    return any(row.name.endswith(f":{pid}") and row.seen_age_s < WORKER_FRESH_S for row in rows)
