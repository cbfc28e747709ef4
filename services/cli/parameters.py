"""``--set name=value``: dotted names make nested parameters, values are JSON where they parse as JSON, else text."""

import json
from collections.abc import Iterable
from typing import Any

from typer import BadParameter


def parse(settings: Iterable[str]) -> dict[str, Any]:
    """``["queries.step=8", "credit=own_token"]`` as ``{"queries": {"step": 8}, "credit": "own_token"}``."""
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, separator, text = setting.partition("=")
        path = name.strip().split(".")
        if not separator or not all(path):
            raise BadParameter(f"{setting!r} is not of the form name=value.", param_hint="--set")
        place = parameters
        for part in path[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise BadParameter(f"{name!r} is below a name that was given a value.", param_hint="--set")
        if path[-1] in place:
            raise BadParameter(f"{name!r} is given twice.", param_hint="--set")
        place[path[-1]] = _value(text)
    return parameters


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
