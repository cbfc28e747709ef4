"""The first API token: given by whoever sets Keyhole up, since nobody can ask the API for one yet."""

import hashlib

from db.connection import connect
from db.repositories import api_tokens
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.states import Scope

MINIMUM_CHARACTERS = 43  # 256 random bits in URL-safe base64


def store(database_url: str, token: str | None, name: str = "first token") -> bool:
    """Make ``token`` valid with the scope admin; False if it already was, or none was given. A revoked one stays so."""
    if not token:
        return False
    if not token.startswith(api_tokens.PREFIX) or len(token) < len(api_tokens.PREFIX) + MINIMUM_CHARACTERS:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"KEYHOLE_ADMIN_TOKEN has {len(token)} characters and is not a token: it reads {api_tokens.PREFIX} and at "
            f"least {MINIMUM_CHARACTERS} random characters.",
            f'Make one with: echo "{api_tokens.PREFIX}$(openssl rand -hex 32)"',
        )
    digest = hashlib.sha256(token.encode()).digest()
    with connect(database_url) as conn, conn.transaction():
        if conn.execute("SELECT FROM keyhole.api_token WHERE sha256 = %s", [digest]).fetchone() is not None:
            return False
        api_tokens.create(conn, name, Scope.ADMIN, token=token)
    return True
