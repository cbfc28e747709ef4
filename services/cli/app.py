"""The ``keyhole`` command: its entry point, and what becomes of errors."""

import json
import sys
from typing import Annotated

import typer
from pydantic import ValidationError

from services.cli import output
from services.cli.commands import Commands
from services.cli.exit_codes import ExitCode
from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.printable import visible_json

_EPILOG = "Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode) + "."

app = typer.Typer(
    name="keyhole",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # here: rarely asked

        print(f"keyhole {version('keyhole')}")
        raise typer.Exit()


@app.callback()
def keyhole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure how attention assigns credit inside transformer language models."""


def main() -> None:
    """Run the command line; an error ends in what happened, what to do next, and an exit code."""
    try:
        app()
    except KeyholeError as error:
        _tell(error)
        sys.exit(ExitCode.UNREACHABLE if error.code is ErrorCode.UNAVAILABLE else ExitCode.ERROR)
    except ValidationError as error:  # bodies that the command makes are told of before
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        _tell(
            KeyholeError(
                ErrorCode.UNEXPECTED,
                f"The API's answer is not as this command reads it: {place}: {first['msg']} ({error.title}).",
                "Command and API must be of one release: compare `keyhole --version` here and where the API runs.",
            )
        )
        sys.exit(ExitCode.ERROR)
    except OSError as error:
        if error.filename is None:
            raise
        _tell(KeyholeError(ErrorCode.INVALID_REQUEST, f"{error.filename}: {error.strerror}.", "Name another place."))
        sys.exit(ExitCode.ERROR)


def _tell(error: KeyholeError) -> None:
    if "--json" in sys.argv:
        described = {"code": str(error.code), "message": error.message, "hint": error.hint}
        print(visible_json(json.dumps({"error": described}, ensure_ascii=False)), file=sys.stderr)
        return
    output.message(f"Error: {error.message}")
    if error.hint:
        output.message(f"       {error.hint}")


if __name__ == "__main__":
    main()
