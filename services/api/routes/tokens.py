"""/v1/tokens: make, list and revoke API tokens (scope admin)."""

from typing import Annotated

from fastapi import APIRouter, Path

from db.repositories import api_tokens
from services.api.auth import Admin
from services.api.database import Database
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.jobs import TokenCreate, TokenCreated, TokenView

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=201)
def create_token(body: TokenCreate, caller: Admin, conn: Database) -> TokenCreated:
    """Make a token. Its text is in this answer and nowhere else. 409 for the name of a token that is in use."""
    with conn.transaction():
        api_tokens.refuse_taken_name(conn, body.name)
        view, token = api_tokens.create(conn, body.name, body.scope, body.expires_in_days)
    return TokenCreated(**view.model_dump(), token=token)


@router.get("")
def list_tokens(caller: Admin, conn: Database) -> list[TokenView]:
    return api_tokens.all_tokens(conn)


@router.delete("/{token_id}", status_code=204)
def revoke_token(token_id: Annotated[int, Path(ge=1, le=2**31 - 1)], caller: Admin, conn: Database) -> None:
    """Revoke a token; requests that carry it are refused from now on."""
    if not api_tokens.revoke(conn, token_id):
        raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no token {token_id}.", "List them with: keyhole token list")
