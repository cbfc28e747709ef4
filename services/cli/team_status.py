"""`keyhole status` where the services are a team's: what the API says of itself and of what it needs."""

import httpx

from services.cli import output
from services.cli.exit_codes import ExitCode
from services.client.connection import find_api


def show_team_status(*, as_json: bool) -> ExitCode:
    """Print one row per part; the exit code is 5 unless API, database, schema and broker are all well."""
    url, _ = find_api()
    parts: dict[str, tuple[bool, str]]
    try:
        answer = httpx.get(f"{url}/v1/health/ready", timeout=10)
        told = answer.json()
        parts = {"api": (True, url)}
        parts |= {name: (part["ok"], part["detail"]) for name, part in told.items() if isinstance(part, dict)}
    except (httpx.HTTPError, ValueError) as error:
        parts = {"api": (False, f"{url} does not answer as Keyhole's API: {type(error).__name__}")}
    if as_json:
        output.as_json({name: {"ok": well, "detail": detail} for name, (well, detail) in parts.items()})
    else:
        rows = [(name, "well" if well else "not well", detail) for name, (well, detail) in parts.items()]
        output.table(("part", "state", "detail"), rows)
        output.message("workers: keyhole doctor")
    return ExitCode.OK if all(well for well, _ in parts.values()) else ExitCode.UNREACHABLE
