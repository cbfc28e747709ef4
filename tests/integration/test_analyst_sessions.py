"""Sessions of analysts: ended when they last, idle or hold too much, so that the service keeps its connections."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from db import analyst_sessions
from db.connection import open_pool
from services.contracts.errors import ErrorCode
from tests.conftest import MigratedDatabase
from tests.integration.test_analyst_sql import _error, _run


def test_reaping_ends_overlong_statements_and_idle_transactions_of_direct_sessions(
    module_database: MigratedDatabase, owner: psycopg.Connection
) -> None:
    outcomes: dict[str, object] = {}

    def compute() -> None:
        with module_database.connect_analyst() as conn:
            conn.execute("SET statement_timeout = 0")
            try:
                conn.execute("SELECT count(*) FROM generate_series(1, 100000000000)")
            except psycopg.Error as error:
                outcomes["compute"] = error

    busy = threading.Thread(target=compute)
    busy.start()
    idle, calm = module_database.connect_analyst(), module_database.connect_analyst()
    idle.execute("BEGIN")
    idle.execute("SELECT count(*) FROM job")
    calm.execute("SELECT 1")
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (
        busy.is_alive() or owner.execute(alive, (idle.info.backend_pid,)).fetchone() != (0,)
    ):
        analyst_sessions.reap(owner, 0.5)
        time.sleep(0.1)
    busy.join(1)
    assert isinstance(outcomes.get("compute"), psycopg.errors.QueryCanceled | psycopg.errors.AdminShutdown)
    with pytest.raises(psycopg.OperationalError):
        idle.execute("SELECT 1")
    assert calm.execute("SELECT 1").fetchone() == (1,)
    calm.close()


def test_reaping_leaves_owners_and_fresh_statements_alone(
    module_database: MigratedDatabase, owner: psycopg.Connection
) -> None:
    with module_database.connect_analyst() as fresh, fresh.transaction(), owner.transaction():
        fresh.execute("SELECT 1")
        assert analyst_sessions.reap(owner, 60.0) == 0
        with module_database.connect() as other, other.transaction():
            other.execute("SELECT 1")
            time.sleep(0.1)
            analyst_sessions.reap(owner, 0.0)
            assert other.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            fresh.execute("SELECT 1")


@contextmanager
def _every_connection(database: MigratedDatabase, first: str) -> Iterator[list[psycopg.Connection]]:
    """All that the role may hold, each after this statement."""
    held: list[psycopg.Connection] = []
    earlier = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'analyst'"
    deadline = time.monotonic() + 10
    with database.connect() as owner:
        while owner.execute(earlier).fetchone() != (0,):  # closed ones still count until their backend is gone
            assert time.monotonic() < deadline
            time.sleep(0.05)
    try:
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            for _ in range(100):
                held.append(database.connect_analyst())
                held[-1].execute(first)  # type: ignore[arg-type]  # literals of these tests
        yield held
    finally:
        for conn in held:
            conn.close()


def test_idle_connections_of_analysts_do_not_keep_the_service_out(
    module_database: MigratedDatabase, owner: psycopg.Connection
) -> None:
    with _every_connection(module_database, "SELECT 1") as held:
        assert len(held) <= 30
        for _ in range(3):
            assert _run(module_database, "SELECT 1 AS a").to_pylist() == [{"a": 1}]
        assert held[-1].execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            held[0].execute("SELECT 1")


def test_when_all_connections_are_busy_the_service_says_so(module_database: MigratedDatabase) -> None:
    with _every_connection(module_database, "BEGIN"):
        error = _error(module_database, "SELECT 1", timeout_s=7.0)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message == "All connections of the role analyst are busy."
    assert error.hint == "Try again: a statement ends within 7 s."


def test_reaping_keeps_the_latest_of_many_idle_sessions(
    module_database: MigratedDatabase, owner: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyst_sessions, "IDLE_KEPT", 2)
    sessions = [module_database.connect_analyst() for _ in range(4)]
    for session in sessions:
        session.execute("SELECT 1")
    assert analyst_sessions.reap(owner, 60.0) == 0  # all fresh
    monkeypatch.setattr(analyst_sessions, "_FRESH_S", 0.0)
    assert analyst_sessions.reap(owner, 60.0) == 2
    for ended in sessions[:2]:
        with pytest.raises(psycopg.OperationalError):
            ended.execute("SELECT 1")
    for kept in sessions[2:]:
        assert kept.execute("SELECT 1").fetchone() == (1,)
        kept.close()


def test_sessions_that_idle_too_long_are_ended_and_pools_of_services_do_not_notice(
    module_database: MigratedDatabase, owner: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyst_sessions, "IDLE_LIMIT_S", 0.0)
    with (
        open_pool(module_database.analyst_url, min_size=0, max_size=1) as pool,
        module_database.connect_analyst() as idle,
    ):
        idle.execute("SET idle_session_timeout = 0")
        with pool.connection() as conn:
            conn.execute("SELECT 1")
        assert analyst_sessions.reap(owner, 60.0) == 2
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
        with pool.connection() as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)


def test_reaping_ends_the_session_with_the_most_memory_and_no_other(
    module_database: MigratedDatabase, owner: psycopg.Connection
) -> None:
    outcomes: list[psycopg.Error] = []

    def hoard() -> None:
        with module_database.connect_analyst() as conn:
            conn.execute("SET work_mem = '1000GB'")
            try:
                conn.execute("SELECT count(*) FROM (SELECT DISTINCT n FROM generate_series(1, 100000000) AS n) AS d")
            except psycopg.Error as error:
                outcomes.append(error)

    with module_database.connect_analyst() as small:
        small.execute("SELECT 1")
        greedy = threading.Thread(target=hoard)
        greedy.start()
        deadline = time.monotonic() + 25
        ended = 0
        while not ended and time.monotonic() < deadline:
            ended = analyst_sessions.reap(owner, 60.0, memory_bytes=200 * 2**20)
            time.sleep(0.05)
        greedy.join(10)
        assert ended == 1
        assert isinstance(outcomes[0], psycopg.errors.AdminShutdown)
        assert small.execute("SELECT 1").fetchone() == (1,)
