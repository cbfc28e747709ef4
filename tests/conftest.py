"""Fixtures that start the real services: PostgreSQL (`postgres`, `database`) and Valkey (`broker`).

A service that cannot start fails the test under CI and skips it, with the reason, elsewhere.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # several test processes: each with one thread, set before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import psycopg
import pytest
from jaxtyping import install_import_hook
from psycopg import sql

# Shapes in signatures are checked in tests only; the hook must be there before the modules are imported.
install_import_hook(["workers.attention", "workers.probes"], "beartype.beartype")

from services.contracts.errors import KeyholeError  # noqa: E402  # after the hook
from services.contracts.settings import Settings  # noqa: E402  # after the hook
from services.local.postgres import OWNER, EmbeddedPostgres  # noqa: E402  # after the hook
from services.local.valkey import EmbeddedValkey  # noqa: E402  # after the hook

ANALYST_PASSWORD = secrets.token_urlsafe(16)
TEMPLATE = "keyhole_template"


@dataclass(frozen=True)
class MigratedDatabase:
    """A fresh database with Keyhole's tables; ``owner_url`` is what services use, ``analyst_url`` may only read."""

    name: str
    owner_url: str
    analyst_url: str
    superuser_url: str

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.owner_url, autocommit=True)

    def connect_analyst(self) -> psycopg.Connection:
        return psycopg.connect(self.analyst_url, autocommit=True)


@contextmanager
def _needed(service: str) -> Iterator[None]:
    try:
        yield
    except (KeyholeError, OSError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{service} cannot start here: {error}")


@pytest.fixture(scope="session")
def builtin_settings() -> Settings:
    """A home whose cache keeps the converted built-in model between runs."""
    return Settings(home=Path(__file__).parents[1] / ".keyhole" / "tests")


@pytest.fixture(scope="session")
def service_folder() -> Iterator[Path]:
    """A short folder that an unprivileged user may pass through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="kh-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(service_folder: Path) -> Iterator[EmbeddedPostgres]:
    """One embedded PostgreSQL for the session, with a migrated template to copy test databases from."""
    server = EmbeddedPostgres(service_folder / "postgres")
    with _needed("PostgreSQL"):
        server.start()
    try:
        from db import migrate  # here, so that tests of other parts do not depend on it

        _forget_at_crashes(server)
        _create_database(server, TEMPLATE)
        migrate.upgrade(server.owner_url(TEMPLATE), analyst_password=ANALYST_PASSWORD)
        migrate.harden(server.superuser_url(TEMPLATE))
        yield server
    finally:
        server.stop()


def _forget_at_crashes(server: EmbeddedPostgres) -> None:
    """No flushes to disk: a test database takes a third of the time. Tests of crashes have servers of their own."""
    with psycopg.connect(server.superuser_url("postgres"), autocommit=True) as conn:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            conn.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(setting)))
        conn.execute("SELECT pg_reload_conf()")


@contextmanager
def _migrated(server: EmbeddedPostgres) -> Iterator[MigratedDatabase]:
    name = f"test_{secrets.token_hex(6)}"
    _create_database(server, name, template=TEMPLATE)
    try:
        from db import migrate

        migrate.upgrade(server.owner_url(name))  # rights on a database are not copied with its template
        yield MigratedDatabase(
            name,
            server.owner_url(name),
            server.url("analyst", ANALYST_PASSWORD, name),
            server.superuser_url(name),
        )
    finally:
        with psycopg.connect(server.superuser_url("postgres"), autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _create_database(server: EmbeddedPostgres, name: str, template: str = "template1") -> None:
    with psycopg.connect(server.superuser_url("postgres"), autocommit=True) as conn:
        statement = "CREATE DATABASE {} OWNER {} TEMPLATE {}"
        names = [sql.Identifier(part) for part in (name, OWNER, template)]
        conn.execute(sql.SQL(statement).format(*names))


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[MigratedDatabase]:
    """A migrated database of the test's own."""
    with _migrated(postgres) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def module_database(postgres: EmbeddedPostgres) -> Iterator[MigratedDatabase]:
    """A migrated database shared by the tests of one module."""
    with _migrated(postgres) as fresh:
        yield fresh


@pytest.fixture
def broker(service_folder: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey of the test's own: ``broker.url`` for Celery, ``broker.client()`` for redis-py."""
    folder = service_folder / f"v{secrets.token_hex(3)}"
    server = EmbeddedValkey(folder)
    with _needed("Valkey"):
        child = server.start()
    yield server
    child.stop(5)
