"""API tokens: made once, stored as a hash, found by that hash until they expire or are revoked."""

import hashlib
import secrets
from dataclasses import dataclass

from psycopg import Connection
from psycopg.rows import class_row

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import TokenView
from services.contracts.states import Scope

PREFIX = "kh_"
_SHOWN = 8  # characters of a token that listings show, the prefix included
_VIEW = "id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at"
_USABLE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())"
_PLAIN_NAME = r"lower(regexp_replace(btrim({}), '\s+', ' ', 'g'))"
_SAME_NAME = f"{_PLAIN_NAME.format('name')} = {_PLAIN_NAME.format('%s::text')}"


@dataclass(frozen=True)
class StoredToken:
    id: int
    name: str
    scope: str
    sha256: bytes


def create(
    conn: Connection, name: str, scope: Scope, expires_in_days: int | None = None, token: str | None = None
) -> tuple[TokenView, str]:
    """Make a token of 256 random bits, or store the one given; returns its row and the text, which is kept nowhere."""
    token = token or PREFIX + secrets.token_urlsafe(32)
    with conn.cursor(row_factory=class_row(TokenView)) as cursor:
        view = cursor.execute(
            f"""
            INSERT INTO keyhole.api_token (name, scope, prefix, sha256, expires_at)
            VALUES (%s, %s, %s, %s, clock_timestamp() + make_interval(days => %s)) RETURNING {_VIEW}
            """,  # noqa: S608  # a list of columns written above
            (name, str(scope), token[:_SHOWN], hashlib.sha256(token.encode()).digest(), expires_in_days),
        ).fetchone()
    assert view is not None
    return view, token


def may_submit(conn: Connection, token_id: int | None) -> bool:
    """Whether what it submitted may still be submitted in its name: it is there, not revoked and not expired."""
    row = conn.execute(
        f"SELECT FROM keyhole.api_token WHERE id = %s AND {_USABLE}",
        (token_id,),
    ).fetchone()
    return row is not None


def refuse_taken_name(conn: Connection, name: str) -> None:
    """Raise KeyholeError (conflict) for the name of a usable token, whatever the case of its letters.

    Jobs are told by the name of the token that submitted them. Call in the transaction that makes the token, or two
    may take one name at once.
    """
    conn.execute("SELECT pg_advisory_xact_lock(hashtext('keyhole.api_token.name'))")
    taken = conn.execute(
        f"SELECT id FROM keyhole.api_token WHERE {_SAME_NAME} AND {_USABLE}",  # noqa: S608  # conditions written above
        (name,),
    ).fetchone()
    if taken is not None:
        raise KeyholeError(
            ErrorCode.CONFLICT,
            f"The name {name!r} is that of token {taken[0]}, which is in use.",
            f"Choose another name, or revoke that token: keyhole token revoke {taken[0]}",
        )


def usable(conn: Connection, sha256: bytes) -> StoredToken | None:
    """The token of that hash if it is neither expired nor revoked; notes the use, at most once a minute."""
    with conn.cursor(row_factory=class_row(StoredToken)) as cursor:
        found = cursor.execute(
            f"SELECT id, name, scope, sha256 FROM keyhole.api_token "  # noqa: S608  # a condition written above
            f"WHERE sha256 = %s AND {_USABLE}",
            (sha256,),
        ).fetchone()
    if found is not None:
        conn.execute(
            "UPDATE keyhole.api_token SET last_used_at = clock_timestamp() "
            "WHERE id = %s AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')",
            (found.id,),
        )
    return found


def any_usable(conn: Connection) -> bool:
    row = conn.execute(
        f"SELECT EXISTS (SELECT FROM keyhole.api_token WHERE {_USABLE})"  # noqa: S608  # a condition written above
    ).fetchone()
    return bool(row and row[0])


def all_tokens(conn: Connection) -> list[TokenView]:
    with conn.cursor(row_factory=class_row(TokenView)) as cursor:
        return cursor.execute(
            f"SELECT {_VIEW} FROM keyhole.api_token ORDER BY id"  # noqa: S608  # a list of columns written above
        ).fetchall()


def revoke(conn: Connection, token_id: int) -> bool:
    """End a token for good; False if there is none of that id. Revoking twice keeps the first time."""
    done = conn.execute(
        "UPDATE keyhole.api_token SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = %s", (token_id,)
    )
    return done.rowcount > 0
