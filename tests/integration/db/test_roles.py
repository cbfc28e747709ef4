"""The analyst role under owners of different rights: what cannot be closed is said, and a superuser can close it."""

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from db import migrate, roles
from services.local.postgres import EmbeddedPostgres
from tests.conftest import ANALYST_PASSWORD, MigratedDatabase


@pytest.fixture
def plain(postgres: EmbeddedPostgres) -> Iterator[tuple[str, str]]:
    """A database whose owner may not even create roles: its name, and its owner's URL."""
    name = f"plain_{secrets.token_hex(6)}"
    identifier = sql.Identifier(name)
    with psycopg.connect(postgres.superuser_url("postgres"), autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(identifier))
        conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(identifier, identifier))
        yield name, postgres.url(name, "plain", name)
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))
        conn.execute(sql.SQL("DROP ROLE {}").format(identifier))


def test_an_owner_without_rights_over_roles_still_serves_analysts_and_says_what_is_open(
    postgres: EmbeddedPostgres, plain: tuple[str, str]
) -> None:
    name, owner_url = plain
    warnings = migrate.upgrade(owner_url, "ignored: this owner may not set it")
    assert any("may use language plpgsql" in warning for warning in warnings)
    assert any("pg_advisory_lock" in warning for warning in warnings)
    assert not any("temporary tables" in warning for warning in warnings)
    with psycopg.connect(postgres.url("analyst", ANALYST_PASSWORD, name)) as analyst:
        assert analyst.execute("SELECT count(*) FROM job").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            analyst.execute("SELECT * FROM keyhole.job")


def test_a_superuser_closes_the_rest_and_the_owner_keeps_what_keyhole_needs(
    postgres: EmbeddedPostgres, plain: tuple[str, str]
) -> None:
    name, owner_url = plain
    migrate.upgrade(owner_url)
    assert migrate.harden(postgres.superuser_url(name)) == []
    assert migrate.upgrade(owner_url) == []
    with psycopg.connect(owner_url, autocommit=True) as owner:
        owner.execute("SELECT pg_advisory_lock(1), pg_advisory_unlock(1)")
        with psycopg.connect(postgres.url("analyst", ANALYST_PASSWORD, name)) as analyst:
            pid = analyst.info.backend_pid
            assert owner.execute("SELECT pg_cancel_backend(%s)", (pid,)).fetchone() == (True,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("SET ROLE analyst")


def test_a_role_given_too_much_is_reported(postgres: EmbeddedPostgres, plain: tuple[str, str]) -> None:
    name, owner_url = plain
    migrate.upgrade(owner_url)
    with psycopg.connect(postgres.superuser_url(name)) as conn:
        conn.execute("GRANT pg_read_all_data TO analyst")
        conn.execute("GRANT CREATE ON SCHEMA public TO analyst")
        findings = roles.findings(conn)
        conn.rollback()
    assert "analyst: role analyst is a member of pg_read_all_data" in findings
    assert "analyst: may create objects in schema public" in findings


@pytest.mark.parametrize("other", ["postgres", "template1", "keyhole"])
def test_analysts_reach_no_other_database_of_the_cluster(
    postgres: EmbeddedPostgres, database: MigratedDatabase, other: str
) -> None:
    """In those nothing is closed: temporary tables, code blocks, large objects, ending others' sessions."""
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(postgres.url("analyst", ANALYST_PASSWORD, other))
    with psycopg.connect(postgres.superuser_url("postgres"), autocommit=True) as conn:
        conn.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO PUBLIC").format(sql.Identifier(other)))
    psycopg.connect(postgres.url("analyst", ANALYST_PASSWORD, other)).close()
    finding = f"analyst: may connect to the database {other}, where Keyhole closes nothing"
    with database.connect() as owner:
        assert roles.findings(owner) == [finding]
        assert migrate.harden(database.superuser_url) == []
        assert roles.findings(owner) == []
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(postgres.url("analyst", ANALYST_PASSWORD, other))


def test_in_a_cluster_that_others_use_their_way_in_stays_and_is_reported(
    postgres: EmbeddedPostgres, database: MigratedDatabase, plain: tuple[str, str]
) -> None:
    """``plain`` is owner and login of a database that has nothing to do with Keyhole."""
    name, _ = plain
    warnings = migrate.harden(database.superuser_url)
    assert warnings == [f"analyst: may connect to the database {name}, where Keyhole closes nothing"]
    psycopg.connect(postgres.url("keyhole", postgres.password("keyhole"), name)).close()


def test_passwords_are_in_no_log_even_when_they_are_refused(postgres: EmbeddedPostgres, plain: tuple[str, str]) -> None:
    migrate.upgrade(plain[1], "a password to look for")
    logs = "".join(path.read_text(errors="replace") for path in postgres.log.glob("*"))
    assert "ALTER ROLE" in logs  # refused statements are logged
    assert ANALYST_PASSWORD not in logs
    assert "a password to look for" not in logs
