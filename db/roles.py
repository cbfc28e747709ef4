"""The role ``analyst``: created, fenced in, and looked over for what is still open.

Some statements need a superuser (functions of pg_catalog belong to one). Each statement is tried by itself; what the
connection's role may not do is skipped, and ``apply`` reports what stays open rather than what was refused.
"""

import time
from pathlib import Path

from psycopg import Connection, errors, sql

ROLE = "analyst"
_SQL = Path(__file__).parent / "roles.sql"

# Functions open to everyone by default with which a reader could write, lock others out, or hold a session.
_CLOSED_FUNCTIONS = (
    r"^(lo_.*|lowrite|loread|pg_(try_)?advisory_.*|pg_sleep.*|pg_notify|pg_cancel_backend|pg_terminate_backend"
    r"|pg_export_snapshot|pg_logical_emit_message|txid_current|pg_current_xact_id)$"
)
_FUNCTION_OIDS = """
SELECT oid::regprocedure::text FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ %s ORDER BY 1
"""
# A database that names the role in its privileges is one of Keyhole's, or somebody meant it.
_OPEN_DATABASES = """
SELECT datname FROM pg_database WHERE
datallowconn AND datname <> current_database() AND has_database_privilege(%(role)s, oid, 'CONNECT')
AND NOT EXISTS (SELECT FROM aclexplode(datacl) WHERE grantee = to_regrole(%(role)s) AND privilege_type = 'CONNECT')
"""
_OPEN = """
SELECT format('role %%s has superuser rights', rolname) FROM pg_roles WHERE rolname = %(role)s AND rolsuper
UNION ALL SELECT format('role %%s is a member of %%s', member::regrole, roleid::regrole) FROM pg_auth_members
    WHERE member = to_regrole(%(role)s)
UNION ALL SELECT 'may create temporary tables' WHERE has_database_privilege(%(role)s, current_database(), 'TEMPORARY')
UNION ALL SELECT 'may create schemas' WHERE has_database_privilege(%(role)s, current_database(), 'CREATE')
UNION ALL SELECT format('may create objects in schema %%s', nspname) FROM pg_namespace
    WHERE has_schema_privilege(%(role)s, oid, 'CREATE')
UNION ALL SELECT format('may use language %%s', lanname) FROM pg_language
    WHERE lanpltrusted AND lanname <> 'sql' AND has_language_privilege(%(role)s, oid, 'USAGE')
UNION ALL SELECT 'may call ' || string_agg(DISTINCT proname, ', ' ORDER BY proname) FROM pg_proc
    WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ %(functions)s
      AND has_function_privilege(%(role)s, oid, 'EXECUTE') HAVING count(*) > 0
UNION ALL SELECT 'may write temporary files without a limit' WHERE NOT EXISTS (
    SELECT FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE setrole = to_regrole(%(role)s) AND setting LIKE 'temp_file_limit=%%')
UNION ALL SELECT format('may reach other servers: extension %%s is installed', extname) FROM pg_extension
    WHERE extname IN ('dblink', 'postgres_fdw', 'file_fdw')
UNION ALL SELECT format('may use language %%s', extname) FROM pg_extension WHERE extname ~ '^pl.*u$'
"""
_OTHER_PEOPLE = """
SELECT FROM pg_roles WHERE rolcanlogin AND NOT rolsuper AND rolname NOT IN (
    SELECT %(role)s UNION ALL SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'keyhole')
"""


def apply(conn: Connection, password: str | None = None) -> list[str]:
    """Create or repair the role and its rights; returns what an analyst can still do beyond reading the views."""
    refused = _create(conn, password)
    if not _exists(conn):
        return [f"The role {ROLE} does not exist and could not be created: {refused}"]
    database, owner = _names(conn)
    for statement in _statements():
        _try(conn, sql.SQL(statement).format(database=database, owner=owner))  # type: ignore[arg-type]  # our own file
    for (function,) in conn.execute(_FUNCTION_OIDS, (_CLOSED_FUNCTIONS,)).fetchall():
        name = sql.SQL(function)
        # Keyhole itself locks with advisory locks and cancels analysts' statements.
        _try(conn, sql.SQL("GRANT EXECUTE ON FUNCTION pg_catalog.{} TO {}").format(name, owner))
        _try(conn, sql.SQL("REVOKE EXECUTE ON FUNCTION pg_catalog.{} FROM PUBLIC").format(name))
    return findings(conn)


def close_other_databases(conn: Connection) -> None:
    """As a superuser, keep the role out of databases that are open to everybody, such as postgres and template1.

    PostgreSQL cannot refuse one role what everybody has, so everybody loses it. Hence only where nobody else logs in
    to the cluster but superusers and Keyhole; elsewhere ``findings`` names those databases.
    """
    if not _exists(conn) or conn.execute(_OTHER_PEOPLE, {"role": ROLE}).fetchone() is not None:
        return
    for (name,) in conn.execute(_OPEN_DATABASES, {"role": ROLE}).fetchall():
        _try(conn, sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))


def findings(conn: Connection) -> list[str]:
    """What the role can do beyond reading the views, one sentence each; empty when it is closed."""
    if not _exists(conn):
        return [f"The role {ROLE} does not exist."]
    rows = conn.execute(_OPEN, {"role": ROLE, "functions": _CLOSED_FUNCTIONS}).fetchall()
    found = [f"{ROLE}: {row[0]}" for row in rows]
    for (name,) in conn.execute(_OPEN_DATABASES, {"role": ROLE}).fetchall():
        found.append(f"{ROLE}: may connect to the database {name}, where Keyhole closes nothing")
    return found


def _create(conn: Connection, password: str | None) -> str:
    """Create the role and set its password; returns the refusal, if any."""
    refused = ""
    if not _exists(conn):
        refused = _try(conn, sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE)))
    if password is not None and _exists(conn):
        # Hashed here: a statement that fails is written to the server's log.
        hashed = conn.pgconn.encrypt_password(password.encode(), ROLE.encode(), b"scram-sha-256").decode()
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(hashed))
        refused = _try(conn, statement)
    return refused


def _exists(conn: Connection) -> bool:
    return conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is not None


def _names(conn: Connection) -> tuple[sql.Identifier, sql.Identifier]:
    """The database, and the role that owns Keyhole's tables (not always the one connected)."""
    row = conn.execute(
        "SELECT current_database(), nspowner::regrole::text FROM pg_namespace WHERE nspname = 'keyhole'"
    ).fetchone()
    assert row is not None
    return sql.Identifier(row[0]), sql.Identifier(row[1])


def _statements() -> list[str]:
    lines = [line for line in _SQL.read_text(encoding="utf-8").splitlines() if not line.startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def _try(conn: Connection, statement: sql.Composed) -> str:
    """Run one statement by itself; returns the server's refusal, or an empty text.

    Roles belong to the whole cluster, so an upgrade of another database may touch the same row at the same moment.
    """
    for pause_s in (0.05, 0.2, 0.5, None):
        try:
            with conn.transaction():
                conn.execute(statement)
            return ""
        except (errors.InternalError_, errors.UniqueViolation, errors.DuplicateObject) as error:
            if pause_s is None:
                return error.diag.message_primary or ""
            time.sleep(pause_s)
        except (errors.InsufficientPrivilege, errors.InvalidGrantOperation, errors.UndefinedObject) as error:
            return error.diag.message_primary or ""
    raise AssertionError("the last try returns")
