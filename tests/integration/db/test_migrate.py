"""Upgrades: from nothing, twice, by many at once, and never of a database that is ahead."""

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from db import migrate
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.kinds import result_tables
from services.local.postgres import OWNER, EmbeddedPostgres
from tests.conftest import MigratedDatabase


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"empty_{secrets.token_hex(6)}"
    with psycopg.connect(postgres.superuser_url("postgres"), autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(OWNER)))
        yield postgres.owner_url(name)
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_many_upgraders_at_once_leave_one_complete_schema(empty_url: str) -> None:
    assert migrate.current(empty_url) is None
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(migrate.upgrade, [empty_url] * 6))
    assert migrate.current(empty_url) == migrate.head()
    with psycopg.connect(empty_url) as conn:
        migrate.require_head(conn)
        assert conn.execute("SELECT count(*) FROM analysis.job").fetchone() == (0,)


def test_an_empty_database_is_told_apart_from_a_current_one(empty_url: str) -> None:
    with psycopg.connect(empty_url) as conn, pytest.raises(KeyholeError, match=r"not there.*Upgrade it with"):
        migrate.require_head(conn)


def test_a_newer_database_is_refused_and_not_touched(database: MigratedDatabase) -> None:
    with database.connect() as conn:
        conn.execute("UPDATE keyhole.alembic_version SET version_num = '9999'")
        conn.execute("DROP SCHEMA analysis CASCADE")
        for attempt in (lambda: migrate.upgrade(database.owner_url), lambda: migrate.require_head(conn)):
            with pytest.raises(KeyholeError, match="9999, which is newer") as raised:
                attempt()
            assert raised.value.code is ErrorCode.UNAVAILABLE
        assert conn.execute("SELECT to_regnamespace('analysis')").fetchone() == (None,)


def test_an_upgrade_without_changes_leaves_views_and_their_readers_alone(database: MigratedDatabase) -> None:
    with database.connect() as conn, database.connect_analyst() as reader:
        before = conn.execute("SELECT 'analysis.job'::regclass::oid").fetchone()
        with reader.transaction():
            reader.execute("SELECT count(*) FROM job")
            migrate.upgrade(database.owner_url)
        assert conn.execute("SELECT 'analysis.job'::regclass::oid").fetchone() == before


def test_changed_views_are_made_anew(database: MigratedDatabase) -> None:
    with database.connect() as conn:
        conn.execute("COMMENT ON SCHEMA analysis IS 'of an older release'")
        conn.execute("CREATE VIEW analysis.dropped_since AS SELECT 1 AS one")
    migrate.upgrade(database.owner_url)
    with database.connect_analyst() as reader:
        assert reader.execute("SELECT count(*) FROM job").fetchone() == (0,)
        with pytest.raises(psycopg.errors.UndefinedTable):
            reader.execute("SELECT * FROM dropped_since")


def test_result_tables_have_the_columns_of_their_contracts(database: MigratedDatabase) -> None:
    with database.connect() as conn:
        for table in result_tables().values():
            columns = conn.execute(
                """
                SELECT attname, atttypid::regtype::text, attnotnull FROM pg_attribute
                WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
                """,
                (f"keyhole.{table.name}",),
            ).fetchall()
            names = {"int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real"}
            names |= {"float8": "double precision", "bool": "boolean"}
            assert columns == [(column.name, names[column.type], True) for column in table.columns]


def test_every_table_view_and_column_has_a_comment(database: MigratedDatabase) -> None:
    with database.connect() as conn:
        missing = conn.execute(
            """
            SELECT relnamespace::regnamespace::text, relname, attname FROM pg_class
            LEFT JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0
            WHERE relnamespace IN ('keyhole'::regnamespace, 'analysis'::regnamespace) AND relkind IN ('r', 'p', 'v')
              AND relname <> 'alembic_version'
              AND (obj_description(pg_class.oid) IS NULL OR col_description(pg_class.oid, attnum) IS NULL)
            ORDER BY 1, 2, attnum
            """
        ).fetchall()
    assert missing == []
