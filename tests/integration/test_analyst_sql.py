"""What analysts can do with SQL, and everything that was tried to do more.

Every attack runs twice: through ``analyst.run``, as the API does, and over a connection of the analyst's own, as psql
does, in a transaction that the attacker made read-write.
"""

import time

import psycopg
import pyarrow as pa
import pytest
from psycopg import conninfo

from db import analyst, analyst_sessions, roles
from db.connection import connect
from db.repositories import api_tokens
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import Scope
from tests.conftest import MigratedDatabase

ATTACKS = {
    "create a table": "CREATE TABLE analysis.mine (a integer)",
    "create a table in public": "CREATE TABLE public.mine (a integer)",
    "create a temporary table": "CREATE TEMPORARY TABLE mine (a integer)",
    "select into a temporary table": "SELECT 1 AS a INTO TEMP mine",
    "create a schema": "CREATE SCHEMA mine",
    "create a function": "CREATE FUNCTION analysis.f() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "run a code block": "DO $$ BEGIN PERFORM 1; END $$",
    "insert into a view": "INSERT INTO analysis.model (id) VALUES (1)",
    "update through a view": "UPDATE analysis.attempt SET worker = 'x'",
    "delete in a modifying WITH": "WITH gone AS (DELETE FROM analysis.model RETURNING id) SELECT * FROM gone",
    "lock rows": "SELECT * FROM analysis.model FOR UPDATE",
    "lock a view": "LOCK TABLE analysis.job IN ACCESS EXCLUSIVE MODE",
    "drop a view": "DROP VIEW analysis.job",
    "read the tokens": "SELECT * FROM keyhole.api_token",
    "read a partitioned table": "SELECT * FROM keyhole.gradient_scale",
    "read passwords": "SELECT rolpassword FROM pg_authid",
    "read a file": "SELECT pg_read_file('/etc/passwd')",
    "list a folder": "SELECT pg_ls_dir('/')",
    "run a program": "COPY (SELECT 1) TO PROGRAM 'id'",
    "write a file": "COPY (SELECT 1) TO '/tmp/analyst_was_here'",
    "make a large object": "SELECT lo_create(0)",
    "make a large object from bytes": "SELECT lo_from_bytea(0, 'x')",
    "import a large object": "SELECT lo_import('/etc/passwd')",
    "hold an advisory lock": "SELECT pg_advisory_lock(1)",
    "try an advisory lock": "SELECT pg_try_advisory_lock(1)",
    "sleep": "SELECT pg_sleep(60)",
    "end others' sessions": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "cancel others' statements": "SELECT pg_cancel_backend(pid) FROM pg_stat_activity",
    "write to the log of changes": "SELECT pg_logical_emit_message(false, 'x', 'y')",
    "export a snapshot": "SELECT pg_export_snapshot()",
    "become the owner": "SET ROLE keyhole",
    "become the superuser": "SET SESSION AUTHORIZATION postgres",
    "grant oneself the owner": "GRANT keyhole TO analyst",
    "make a role": "CREATE ROLE mine",
    "reach another server": "SELECT * FROM dblink('host=/tmp', 'SELECT 1') AS t (a integer)",
    "install an extension": "CREATE EXTENSION dblink",
    "change the server": "ALTER SYSTEM SET work_mem = '1GB'",
    "change a server setting": "SET log_min_messages = 'debug5'",
    "load a library": "LOAD 'auto_explain'",
    "write a checkpoint": "CHECKPOINT",
    "vacuum is for owners": "REINDEX TABLE pg_class",
}


def _run(database: MigratedDatabase, statement: str, limit: int = 1000, timeout_s: float = 20.0) -> pa.Table:
    with analyst.run(database.analyst_url, lambda: connect(database.owner_url), statement, limit, timeout_s) as answer:
        return pa.Table.from_batches(answer, answer.schema)


def _error(database: MigratedDatabase, statement: str, **limits: float) -> KeyholeError:
    with pytest.raises(KeyholeError) as raised:
        _run(database, statement, **limits)  # type: ignore[arg-type]  # limits are passed on as they are
    return raised.value


def _wait_until_all_ended(owner: psycopg.Connection) -> None:
    """A cancelled statement still removes its temporary files before its backend goes."""
    running = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keyhole sql' AND datname = %s"
    deadline = time.monotonic() + 30
    while owner.execute(running, (owner.info.dbname,)).fetchone() != (0,):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_refused_through_the_service(module_database: MigratedDatabase, attack: str) -> None:
    error = _error(module_database, attack)
    assert error.code is ErrorCode.SQL_REFUSED
    assert error.message
    assert error.hint


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_refused_on_a_connection_made_read_write(module_database: MigratedDatabase, attack: str) -> None:
    with module_database.connect_analyst() as conn:
        conn.execute("SET statement_timeout = 0")
        conn.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.Error) as raised:
            conn.execute(attack)  # type: ignore[arg-type]  # from the list above
        assert not isinstance(raised.value, psycopg.errors.SyntaxError | psycopg.errors.ReadOnlySqlTransaction)


def test_changing_a_view_is_not_answered_with_advice_how_to(module_database: MigratedDatabase) -> None:
    with pytest.raises(KeyholeError) as refused:
        _run(module_database, "DELETE FROM job")
    assert "trigger" not in refused.value.hint


def test_nothing_is_open_to_the_analyst_beyond_the_views(owner: psycopg.Connection) -> None:
    assert roles.findings(owner) == []
    readable = owner.execute(
        """
        SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class
        WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND has_table_privilege('analyst', oid, 'SELECT')
          AND has_schema_privilege('analyst', relnamespace, 'USAGE') ORDER BY 1
        """
    ).fetchall()
    assert [row[0] for row in readable] == ["analysis", "information_schema", "pg_catalog"]


def test_secrets_are_in_no_view(module_database: MigratedDatabase, owner: psycopg.Connection) -> None:
    _, secret = api_tokens.create(owner, "someone", Scope.ADMIN)
    views = _run(module_database, "SELECT viewname::text AS name FROM pg_views WHERE schemaname = 'analysis'")
    for name in views["name"].to_pylist():
        text = _run(module_database, f"SELECT coalesce(string_agg(t::text, ' '), '') AS all FROM analysis.{name} AS t")
        assert secret[:8] not in text["all"][0].as_py()


@pytest.mark.parametrize("statement", ["SELECT 1; SELECT 2", "COMMIT; DROP VIEW analysis.job", "SELECT 1;;SELECT 2"])
def test_several_statements_are_refused(module_database: MigratedDatabase, statement: str) -> None:
    assert "multiple commands" in _error(module_database, statement).message


@pytest.mark.parametrize(
    "statement",
    [
        "SET statement_timeout = 0",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "COMMIT",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "PREPARE p AS SELECT 1",
        "LISTEN something",
        "NOTIFY something",
    ],
)
def test_settings_and_session_commands_last_no_longer_than_their_statement(
    module_database: MigratedDatabase, statement: str
) -> None:
    _run(module_database, statement)
    state = _run(
        module_database,
        "SELECT current_setting('transaction_read_only') AS read_only, (SELECT count(*) FROM pg_cursors) AS cursors, "
        "(SELECT count(*) FROM pg_prepared_statements) AS prepared, pg_listening_channels() IS NULL AS deaf",
    )
    assert state["read_only"].to_pylist() in (["on"], [])


def test_the_service_statement_cannot_leave_its_read_only_transaction(module_database: MigratedDatabase) -> None:
    assert "read-write" in _error(module_database, "BEGIN READ WRITE").message
    assert "read-write" in _error(module_database, "SET TRANSACTION READ WRITE").message
    error = _error(module_database, "SELECT set_config('transaction_read_only', 'off', true)")
    assert "read-write" in error.message


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM generate_series(1, 100000000000)",
        "SELECT * FROM generate_series(1, 100000000000) AS n WHERE n < 0",
        "SELECT set_config('statement_timeout', '0', false), count(*) FROM generate_series(1, 100000000000)",
        "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT count(*) FROM r",
    ],
)
def test_the_time_limit_holds_whatever_the_statement_sets(module_database: MigratedDatabase, statement: str) -> None:
    error = _error(module_database, statement, timeout_s=1.0)
    assert error.code is ErrorCode.SQL_LIMIT
    assert "time limit of 1 s" in error.message
    with module_database.connect() as conn:
        _wait_until_all_ended(conn)


def test_a_backend_that_ignores_the_cancel_is_terminated(
    module_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's cancel is lost on the way; the terminate that follows ends the session."""
    monkeypatch.setattr(analyst, "_CANCEL_GRACE_S", 0.2)
    lost = iter([True])

    def owner() -> psycopg.Connection:
        if next(lost, False):
            raise psycopg.OperationalError("lost on the way")
        return connect(module_database.owner_url)

    with pytest.raises(KeyholeError) as raised:
        analyst.run(module_database.analyst_url, owner, "SELECT count(*) FROM generate_series(1, 100000000000)", 1, 0.5)
    assert raised.value.code is ErrorCode.SQL_LIMIT


def test_temporary_files_are_bounded(module_database: MigratedDatabase, owner: psycopg.Connection) -> None:
    """Sorts and functions in FROM go through files, which nothing but this limit bounds within the time limit."""
    assert "permission denied" in _error(module_database, "SET temp_file_limit = -1").message
    error = _error(
        module_database,
        "SELECT n || repeat('x', 1000) FROM generate_series(1, 2000000) AS n ORDER BY 1",
        timeout_s=60.0,
    )
    assert error.code is ErrorCode.SQL_LIMIT
    assert "temporary file size exceeds" in error.message
    assert "filter by job_id" in error.hint


def test_rows_beyond_the_limit_are_cut_and_it_is_said(module_database: MigratedDatabase) -> None:
    for rows, truncated in ((999, False), (1000, False), (1001, True), (10**10, True)):
        with analyst.run(
            module_database.analyst_url,
            lambda: connect(module_database.owner_url),
            f"SELECT generate_series(1, {rows}) AS n",
            1000,
            20.0,
        ) as answer:
            numbers = pa.Table.from_batches(answer, answer.schema)["n"].to_pylist()
        assert numbers == list(range(1, min(rows, 1000) + 1))
        assert answer.truncated is truncated


def test_a_row_larger_than_memory_allows_is_not_received(module_database: MigratedDatabase) -> None:
    error = _error(module_database, "SELECT repeat('x', 400000000)")
    assert error.code is ErrorCode.SQL_LIMIT
    assert "too large" in error.message
    assert _error(module_database, "SELECT repeat('x', 2000000000)").code in (
        ErrorCode.SQL_LIMIT,
        ErrorCode.SQL_REFUSED,
    )


def test_an_abandoned_answer_ends_its_statement(module_database: MigratedDatabase, owner: psycopg.Connection) -> None:
    answer = analyst.run(
        module_database.analyst_url,
        lambda: connect(module_database.owner_url),
        "SELECT generate_series(1, 10000000000)",
        10**10,
        60.0,
    )
    next(iter(answer))
    answer.close()
    _wait_until_all_ended(owner)


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("SELECT 1 AS a, 2 AS b", [{"a": 1, "b": 2}]),
        ("WITH x AS (VALUES (1), (2)) SELECT sum(column1) AS total FROM x", [{"total": 3}]),
        ("VALUES (1, 'x')", [{"column1": 1, "column2": "x"}]),
        ("TABLE job", []),
        ("SHOW search_path", [{"search_path": "analysis"}]),
        ("SELECT avg(n) AS mean FROM generate_series(1, 4) AS n", [{"mean": 2.5}]),
        ("SELECT 'NaN'::real AS a, 'Infinity'::float8 AS b, NULL::integer AS c", None),
        ("SELECT ARRAY[1, 2, NULL] AS a, ARRAY['x'] AS b", [{"a": [1, 2, None], "b": ["x"]}]),
        ("SELECT '{\"a\": 1}'::jsonb AS a, interval '1 day' AS b", [{"a": '{"a": 1}', "b": "1 day"}]),
    ],
)
def test_what_analysts_may_ask_is_answered_with_kinds_kept(
    module_database: MigratedDatabase, statement: str, rows: list | None
) -> None:
    answer = _run(module_database, statement).to_pylist()
    if rows is None:
        assert str(answer) == "[{'a': nan, 'b': inf, 'c': None}]"
    else:
        assert answer == rows


def test_explain_shows_its_plan(module_database: MigratedDatabase) -> None:
    plan = _run(module_database, "EXPLAIN SELECT * FROM gradient_scale WHERE job_id = 1")
    assert plan.column_names == ["QUERY PLAN"]
    assert plan.num_rows > 0


def test_times_arrive_in_utc(module_database: MigratedDatabase) -> None:
    table = _run(module_database, "SELECT '2026-01-02 03:04:05+02'::timestamptz AS at")
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert table["at"][0].as_py().isoformat() == "2026-01-02T01:04:05+00:00"


def test_postgres_says_what_is_wrong_and_where(module_database: MigratedDatabase) -> None:
    error = _error(module_database, "SELECT colour FROM job")
    assert error.code is ErrorCode.SQL_REFUSED
    assert error.message == 'column "colour" does not exist at character 8'


def test_a_failure_after_the_first_rows_is_raised_and_not_a_short_answer(module_database: MigratedDatabase) -> None:
    error = _error(module_database, "SELECT 1 / (900 - n) FROM generate_series(1, 2000) AS n", limit=5000)
    assert error.message == "division by zero"
    assert "docs/sql.md" in error.hint


@pytest.mark.parametrize("statement", ["SELECT '\x00'", "SELECT '\ud800'", "SELECT 'infinity'::timestamptz"])
def test_values_that_cannot_pass_are_explained(module_database: MigratedDatabase, statement: str) -> None:
    assert _error(module_database, statement).code is ErrorCode.SQL_REFUSED


def test_answers_name_no_socket_and_no_host(module_database: MigratedDatabase, owner: psycopg.Connection) -> None:
    def failed(url: str, statement: str = "SELECT 1") -> KeyholeError:
        with (
            pytest.raises(KeyholeError) as raised,
            analyst.run(url, lambda: connect(module_database.owner_url), statement, 10**10, 20.0) as answer,
        ):
            for _ in answer:
                analyst_sessions.reap(owner, -10.0)
        return raised.value

    right = module_database.analyst_url
    wrong_password = conninfo.make_conninfo(right, password="wrong")
    nobody_there = conninfo.make_conninfo(right, host="/tmp/nobody-listens-here")
    ended = "SELECT generate_series(1, 10000000000)"
    for error in (failed(wrong_password), failed(nobody_there), failed(right, ended)):
        assert error.code is ErrorCode.UNAVAILABLE
        assert "/" not in str(error)
        assert "socket" not in str(error)
        assert error.hint


def test_a_changed_password_and_settings_are_put_back_by_the_next_upgrade(
    module_database: MigratedDatabase, owner: psycopg.Connection
) -> None:
    """A role may always change its own password: known, and repaired."""
    with module_database.connect_analyst() as conn:
        conn.execute("SET default_transaction_read_only = off")
        conn.execute("ALTER ROLE analyst SET search_path = pg_temp")
    with module_database.connect_analyst() as conn:
        assert conn.execute("SHOW search_path").fetchone() == ("pg_temp",)
    assert roles.apply(owner) == []
    with module_database.connect_analyst() as conn:
        assert conn.execute("SHOW search_path").fetchone() == ("analysis",)
