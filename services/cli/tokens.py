"""``keyhole token create|list|revoke`` (scope admin)."""

from typing import Annotated

import typer

from services.cli import output
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.states import Scope

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make, list and revoke API tokens.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is or what for; listings of jobs show it.")],
    scope: Annotated[
        Scope, typer.Option(help="read, submit (includes read) or admin (includes submit).")
    ] = Scope.SUBMIT,
    expires_in_days: Annotated[int | None, typer.Option(min=1, max=3650, help="Never unless given.")] = None,
    json: Json = False,
) -> None:
    """Make a token. It is printed once and stored nowhere."""
    made = api().create_token(name, scope, expires_in_days)
    if json:
        output.as_json(made)
    else:
        output.data(made.token)
        output.message(f"Token {made.id} {made.name!r}, scope {made.scope}. It is not shown again.")


@app.command("list")
def list_(json: Json = False) -> None:
    """List tokens, without their text."""
    found = api().tokens()
    if json:
        output.as_json(found)
        return
    output.table(
        ("id", "name", "scope", "begins", "created", "expires", "last used", "revoked"),
        (
            (
                token.id,
                token.name,
                token.scope,
                token.prefix + "…",
                *map(output.when, (token.created_at, token.expires_at, token.last_used_at, token.revoked_at)),
            )
            for token in found
        ),
    )


@app.command()
def revoke(token_id: Annotated[int, typer.Argument(metavar="ID", min=1)], json: Json = False) -> None:
    """Revoke a token: requests that carry it are refused from now on."""
    api().revoke_token(token_id)
    if json:
        output.as_json({"id": token_id, "revoked": True})
    else:
        output.data(f"Token {token_id} is revoked.")
