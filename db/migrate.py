"""Bring a database to the schema of this code: migrations, then the analysts' views, then the analyst role.

python -m db.migrate            upgrades the database of KEYHOLE_DATABASE_URL
"""

import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg import Connection
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from db import analysis, roles
from db.connection import connect
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import settings

_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x6B686D67  # advisory lock "khmg": one upgrader at a time


def upgrade(url: str, analyst_password: str | None = None) -> list[str]:
    """Upgrade to head and (re)create views and role; returns what could not be closed to analysts, in words.

    Safe to call at every start and from several processes at once. Raises KeyholeError (unavailable) when the
    database is newer than this code.
    """
    with connect(url) as conn:
        # Polled, because a session that waits inside a statement holds a snapshot, which would block for ever a
        # migration that creates an index concurrently.
        while not _scalar(conn, "SELECT pg_try_advisory_lock(%s)", _LOCK):
            time.sleep(0.1)
        _refuse_newer(_revision(conn))
        conn.execute("CREATE SCHEMA IF NOT EXISTS keyhole")
        if _revision(conn) != head():
            _run_migrations(url)
        analysis.install(conn)
        return roles.apply(conn, analyst_password)


def harden(url: str) -> list[str]:
    """Close to analysts what only a superuser can; ``url`` is a superuser's. Returns what stays open, in words."""
    with connect(url) as conn:
        roles.apply(conn)
        roles.close_other_databases(conn)
        return roles.findings(conn)


def current(url: str) -> str | None:
    """The database's revision; None when Keyhole was never installed in it."""
    with connect(url) as conn:
        return _revision(conn)


def head() -> str:
    """The revision this code needs."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def require_head(conn: Connection) -> None:
    """Raise KeyholeError (unavailable) unless the database has exactly the schema of this code."""
    revision = _revision(conn)
    _refuse_newer(revision)
    if revision != head():
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The database's schema is {revision or 'not there'}; this Keyhole needs {head()}.",
            "Upgrade it with: keyhole migrate",
        )


def _refuse_newer(revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise KeyholeError(
            ErrorCode.UNAVAILABLE,
            f"The database's schema is {revision}, which is newer than this Keyhole; it knows up to {head()}.",
            "Start the Keyhole release that upgraded the database, or a later one.",
        )


def _revision(conn: Connection) -> str | None:
    if _scalar(conn, "SELECT to_regclass('keyhole.alembic_version') IS NULL"):
        return None
    row = conn.execute("SELECT version_num FROM keyhole.alembic_version").fetchone()
    return row[0] if row else None


def _run_migrations(url: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: connect(url, autocommit=False), poolclass=NullPool)
    config = _config()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _scalar(conn: Connection, query: str, *parameters: object) -> object:
    row = conn.execute(query, parameters).fetchone()  # type: ignore[arg-type]  # literals above
    assert row is not None
    return row[0]


def main() -> int:
    configured = settings()
    if configured.database_url is None:
        print("KEYHOLE_DATABASE_URL is not set; the embedded stack upgrades its own database.", file=sys.stderr)
        return 2
    password = None
    if configured.analyst_url is not None:
        password = unquote(urlsplit(configured.analyst_url.get_secret_value()).password or "") or None
    try:
        warnings = upgrade(configured.database_url.get_secret_value(), password)
    except KeyholeError as error:
        print(error, file=sys.stderr)
        return 1
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"The database has schema {head()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
