"""`keyhole migrate` and `keyhole serve`: services started by hand against a PostgreSQL and a broker on TCP."""

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from db.repositories import api_tokens, workers
from services.api.enqueue import announce
from services.contracts.settings import Settings
from services.local import first_token, processes
from services.local.binaries import valkey_server
from services.local.database_owner import create
from services.local.postgres import EmbeddedPostgres
from services.local.processes import ChildProcess

ROOT = Path(__file__).parents[3]


class Team:
    """Addresses with passwords of the tests' own, in a PostgreSQL where nothing of Keyhole is yet."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.passwords = {role: secrets.token_hex(32) for role in ("team_owner", "analyst")}
        self.token = "kh_" + secrets.token_hex(32)
        self.superuser_url = server.url("postgres", server.password("postgres"), "postgres", tcp=True)
        self.database_url = server.url("team_owner", self.passwords["team_owner"], "team", tcp=True)
        self.analyst_url = server.url("analyst", self.passwords["analyst"], "team", tcp=True)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
        self.environment = clean | {
            "KEYHOLE_HOME": str(server.folder / "home"),
            "KEYHOLE_DATABASE_URL": self.database_url,
            "KEYHOLE_ANALYST_URL": self.analyst_url,
            "KEYHOLE_BROKER_URL": "redis://127.0.0.1:1/0",
        }

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        command = [sys.executable, "-m", "services.cli.app", *arguments]
        done = subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=120, check=False
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        for secret in (*self.passwords.values(), self.token):
            assert secret not in output
        return output


@pytest.fixture(scope="module")
def team(service_folder: Path) -> Iterator[Team]:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    server = EmbeddedPostgres(service_folder / "team", tcp_port=port)
    server.start()
    with psycopg.connect(server.superuser_url("postgres"), autocommit=True) as conn:
        conn.execute("DROP DATABASE keyhole")
        conn.execute("DROP ROLE keyhole")
    try:
        yield Team(server)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def migrated(team: Team) -> Team:
    team.run("migrate", KEYHOLE_SUPERUSER_URL=team.superuser_url)
    return team


def test_migrate_makes_role_database_schema_and_a_closed_analyst(migrated: Team) -> None:
    again = migrated.run("migrate", KEYHOLE_SUPERUSER_URL=migrated.superuser_url)
    assert "warning" not in again
    with psycopg.connect(migrated.database_url) as conn:
        assert conn.execute("SELECT count(*) FROM keyhole.job").fetchone() == (0,)
        assert conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
    with psycopg.connect(migrated.analyst_url) as conn:
        assert conn.execute("SELECT count(*) FROM job").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT count(*) FROM keyhole.job")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(migrated.analyst_url.replace("/team", "/postgres"))


def test_a_passwords_hash_and_not_the_password_is_what_the_server_is_sent(team: Team) -> None:
    with psycopg.connect(team.superuser_url, autocommit=True) as watcher:
        watcher.execute("ALTER SYSTEM SET log_statement = 'all'")
        watcher.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)
        create(team.superuser_url, "a-password-to-look-for", "someone", "team_other")
        watcher.execute("ALTER SYSTEM RESET log_statement")
        watcher.execute("SELECT pg_reload_conf()")
        row = watcher.execute("SELECT pg_read_file(pg_current_logfile()), rolpassword FROM pg_authid "
                              "WHERE rolname = 'someone'").fetchone()  # fmt: skip
    assert row is not None
    log, stored = row
    assert "ALTER ROLE" in log
    assert "a-password-to-look-for" not in log
    assert stored.startswith("SCRAM-SHA-256$")


def test_nobody_listens_beyond_loopback_before_there_is_a_token(migrated: Team) -> None:
    output = migrated.run("serve", "api", code=1, KEYHOLE_HOST="0.0.0.0")
    assert "does not listen on 0.0.0.0" in output


def test_the_first_token_must_be_one_that_cannot_be_guessed(migrated: Team) -> None:
    output = migrated.run("migrate", code=1, KEYHOLE_ADMIN_TOKEN="kh_password")
    assert "openssl rand -hex 32" in output
    assert "kh_password" not in output


def test_the_first_token_is_stored_once_and_stays_revoked(migrated: Team) -> None:
    url = migrated.database_url
    migrated.run("migrate", KEYHOLE_ADMIN_TOKEN=migrated.token)
    assert not first_token.store(url, migrated.token)
    with psycopg.connect(url) as conn:
        (row,) = api_tokens.all_tokens(conn)
        assert row.scope == "admin"
        api_tokens.revoke(conn, row.id)
        conn.commit()
        assert not first_token.store(url, migrated.token)
        assert not api_tokens.any_usable(conn)


def test_a_service_names_the_addresses_it_lacks(team: Team) -> None:
    without = {name: value for name, value in team.environment.items() if name != "KEYHOLE_BROKER_URL"}
    command = [sys.executable, "-m", "services.cli.app", "serve", "worker"]
    done = subprocess.run(command, env=without, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "KEYHOLE_BROKER_URL" in done.stderr
    assert "KEYHOLE_DATABASE_URL" not in done.stderr


def test_a_database_that_does_not_answer_is_exit_code_5(team: Team) -> None:
    nowhere = "postgresql://keyhole@127.0.0.1:1/keyhole"
    assert "does not answer" in team.run("migrate", code=5, KEYHOLE_DATABASE_URL=nowhere)


@pytest.fixture
def guarded_broker(service_folder: Path) -> Iterator[str]:
    """A broker with the access rules of docker-compose.yml; its URL."""
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]["command"][-1]
    rules = re.search(r"printf '(.*?)'", command)
    assert rules is not None
    password = secrets.token_hex(32)
    folder = service_folder / f"g{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    (folder / "users.acl").write_text(rules[1].replace("\\n", "\n") % password)
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    server = processes.start(
        [valkey_server(), "--bind", "127.0.0.1", "--port", str(port), "--aclfile", folder / "users.acl", "--save", ""],
        log=folder / "log",
        cwd=folder,
    )
    try:
        _eventually(lambda: "Ready to accept connections" in (folder / "log").read_text(), folder / "log")
        yield f"redis://keyhole:{password}@127.0.0.1:{port}/0"
    finally:
        server.stop(10)


def test_a_worker_takes_messages_from_a_broker_with_the_access_rules_of_compose(
    migrated: Team, guarded_broker: str, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    worker = processes.start(
        [sys.executable, "-m", "services.cli.app", "serve", "worker"],
        log=log,
        cwd=tmp_path,
        environment=migrated.environment | {"KEYHOLE_BROKER_URL": guarded_broker, "KEYHOLE_DEVICES": "cpu"},
    )
    try:
        _eventually(lambda: "worker ready" in log.read_text(), log, worker)
        assert announce(Settings(broker_url=guarded_broker), "probe", 1)  # type: ignore[arg-type]  # pydantic converts
        with psycopg.connect(migrated.database_url, autocommit=True) as conn:
            _eventually(lambda: any(row.polled_at for row in workers.all_workers(conn)), log, worker)
    finally:
        worker.stop(30)
    text = log.read_text()
    assert "NOPERM" not in text
    assert guarded_broker.split(":")[2].split("@")[0] not in text


def _eventually(ask: Callable[[], bool], log: Path, process: ChildProcess | None = None) -> None:
    deadline = time.monotonic() + 90
    while not ask():
        assert time.monotonic() < deadline, log.read_text()
        assert process is None or process.alive, log.read_text()
        time.sleep(0.1)
