"""The role and database that Keyhole works as, made by a superuser: for the embedded server and for a team's own."""

import psycopg
from psycopg import sql

OWNER = "keyhole"
DATABASE = "keyhole"


def create(superuser_url: str, owner_password: str, owner: str = OWNER, database: str = DATABASE) -> None:
    """Make role and database where missing; the role gets the password given. It may create roles, nothing more."""
    with psycopg.connect(superuser_url, autocommit=True) as conn:
        role, verifier = sql.Identifier(owner), _scram_verifier(conn, owner, owner_password)
        if conn.execute("SELECT FROM pg_roles WHERE rolname = %s", [owner]).fetchone() is None:
            conn.execute(sql.SQL("CREATE ROLE {}").format(role))
        rights = sql.SQL("ALTER ROLE {} LOGIN CREATEROLE NOSUPERUSER NOCREATEDB PASSWORD {}")
        conn.execute(rights.format(role, verifier))
        # the SQL endpoint ends analysts' statements from another session
        conn.execute(sql.SQL("GRANT pg_signal_backend TO {}").format(role))
        if conn.execute("SELECT FROM pg_database WHERE datname = %s", [database]).fetchone() is None:
            conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), role))


def _scram_verifier(conn: psycopg.Connection, role: str, role_password: str) -> sql.Literal:
    """The stored form of a password, so that the password itself appears in no statement and no server log."""
    encrypted = conn.pgconn.encrypt_password(role_password.encode(), role.encode(), b"scram-sha-256")
    return sql.Literal(encrypted.decode())
