"""``keyhole kinds``: what can be submitted, and with which parameters."""

import json as json_module
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from services.cli import output
from services.cli.jobs import api
from services.cli.output import Json


def kinds(
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind.")] = None,
    json: Json = False,
) -> None:
    """List the kinds of job with their parameters, defaults and tables."""
    found = [each for each in api().kinds() if kind in (None, each.name)]
    if kind and not found:
        raise typer.BadParameter(f"There is no job kind {kind!r}; `keyhole kinds` lists them.", param_hint="KIND")
    if json:
        output.as_json(found)
        return
    for each in found:
        output.data(f"{each.name}  (version {each.version}, queue {each.queue})\n  {each.summary}")
        output.data(f"  tables: {', '.join(each.tables)}   metrics: {', '.join(each.metrics)}")
        for name, default, meaning in _rows(each.parameters_schema, each.defaults):
            output.data(f"    --set {name}={json_module.dumps(default)}".ljust(44) + f"  {meaning}")


def _rows(schema: dict[str, Any], defaults: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted name, default, description) of each parameter, nested ones in their place."""
    definitions = schema.get("$defs", {})
    for name, described in schema.get("properties", {}).items():
        nested = definitions.get(str(described.get("$ref", "")).removeprefix("#/$defs/"))
        if nested is not None and isinstance(defaults.get(name), dict):
            yield from _rows({**nested, "$defs": definitions}, defaults[name], f"{prefix}{name}.")
        else:
            choices = " | ".join(map(str, described["enum"])) if "enum" in described else ""
            meaning = described.get("description", "") + _members(described, definitions)
            yield f"{prefix}{name}", defaults.get(name), f"{meaning} [{choices}]" if choices else meaning


def _members(described: dict[str, Any], definitions: dict[str, Any]) -> str:
    """How to write a list of objects, such as `` as [{"layer": …, "head": …}]``; nothing for other parameters."""
    for form in (described, *described.get("anyOf", ())):
        reference = str(form.get("items", {}).get("$ref", "")).removeprefix("#/$defs/")
        if reference in definitions:
            fields = ", ".join(f'"{name}": …' for name in definitions[reference].get("properties", {}))
            return f"; as [{{{fields}}}, …]"
    return ""
