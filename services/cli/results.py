"""Commands about results: sql and export."""

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from services.cli import output
from services.cli.jobs import JobId, api
from services.cli.output import Json
from services.contracts.errors import ErrorCode, KeyholeError

_WIDEST_CELL = 48  # of the table format; the others write every cell whole


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def sql(
    query: Annotated[str, typer.Argument(help="One SQL statement; `-` reads it from standard input.")],
    format_: Annotated[Format, typer.Option("--format", help="How to write the rows.")] = Format.TABLE,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Rows at most; the server's own limit holds besides.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="A file instead of stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Run one SQL statement as the read-only role."""
    wanted = Format.JSON if json else format_
    text = _from_stdin() if query == "-" else query
    if wanted is Format.PARQUET and to is None and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is not for a terminal; add --output FILE.", param_hint="--format")
    if wanted is Format.TABLE and to is not None:
        raise typer.BadParameter("A file needs --format csv, json or parquet.", param_hint="--output")
    with api().sql_stream(text, "json" if wanted is Format.TABLE else wanted.value, limit=limit) as answer:
        if wanted is Format.TABLE:
            import json as json_module

            answered = json_module.loads(answer.read())
            output.table([column["name"] for column in answered["columns"]], answered["rows"], widest=_WIDEST_CELL)
        elif to is None and sys.stdout.isatty():
            output.rows_as_text(answer, json=wanted is Format.JSON)
        else:
            with to.open("wb") if to else sys.stdout.buffer as file:
                shutil.copyfileobj(answer, file)
        if answer.truncated:
            output.message("The row limit cut the answer; --limit N, up to the server's own limit, gives more.")


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST, f"Standard input is not UTF-8: {error}.", "Save the statement as UTF-8."
        ) from error


def export(
    job_id: JobId,
    to: Annotated[Path, typer.Option("--to", file_okay=False, help="Folder to write into; made if it is not there.")],
    json: Json = False,
) -> None:
    """Write a job's tables as Parquet, with a manifest of row counts and hashes."""
    from services.client.export import read_manifest

    path = api().job(job_id).export(to)
    manifest = read_manifest(path)
    if json:
        output.as_json({"manifest": str(path), **manifest})
        return
    output.table(
        ("table", "rows", "bytes", "file"),
        ((f["table"], f["rows"], f["bytes"], to / f["file"]) for f in manifest["files"]),
    )
    output.message(f"Manifest: {path}")
