"""The processes of the embedded stack besides PostgreSQL and Valkey: how each is started, asked and stopped."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from db.repositories import workers
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
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
    stop_grace_s: float


def child_services(settings: Settings, stack: StackFile) -> list[ChildService]:
    """API, reconciler, worker and dashboard, in the order of starting; each gets only the secrets it needs."""
    common = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    common |= {"KEYHOLE_HOME": str(settings.home), "PYTHONUNBUFFERED": "1"}
    analyst = common | {"KEYHOLE_ANALYST_URL": stack.analyst_url, "KEYHOLE_API_URL": stack.api_url}
    owner = common | {"KEYHOLE_DATABASE_URL": stack.database_url, "KEYHOLE_BROKER_URL": stack.broker_url}
    api_port, dashboard_port = (int(url.rpartition(":")[2]) for url in (stack.api_url, stack.dashboard_url))
    return [
        ChildService(
            "api",
            api_command(settings.host, api_port),
            owner | analyst | {"KEYHOLE_API_PORT": str(api_port)},
            lambda pid: _http_ok(f"{stack.api_url}/v1/health/ready"),
            start_limit_s=60,
            stop_grace_s=10,
        ),
        ChildService("reconciler", RECONCILER, owner, lambda pid: True, start_limit_s=10, stop_grace_s=10),
        ChildService(
            "worker",
            WORKER,
            owner,
            lambda pid: _worker_seen(stack.database_url, pid),
            start_limit_s=90,
            # its child gets stop_grace_s to end, then its shards are given back
            stop_grace_s=settings.life.stop_grace_s + 25,
        ),
        ChildService(
            "dashboard",
            dashboard_command("127.0.0.1", dashboard_port),
            analyst,
            lambda pid: _http_ok(f"{stack.dashboard_url}/_stcore/health"),
            start_limit_s=60,
            stop_grace_s=5,
        ),
    ]


WORKER = (*PYTHON, "workers.start")
RECONCILER = (*PYTHON, "workers.reconciler")
_SECRETS = ("KEYHOLE_DATABASE_URL", "KEYHOLE_BROKER_URL", "KEYHOLE_ANALYST_URL", "KEYHOLE_TOKEN", "KEYHOLE_ADMIN_TOKEN")


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
    if spec is None or spec.origin is None:
        raise KeyholeError(ErrorCode.UNAVAILABLE, "The dashboard is not installed.", "Run `make setup`.")
    return Path(spec.origin).with_name("app.py")


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
