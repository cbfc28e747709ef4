"""``--axis name=1e-3,3e-3`` and ``--variant``: what a sweep varies, as it is written on a command line."""

import json
import re
from collections.abc import Iterable
from typing import Any

from typer import BadParameter

_RANGE = re.compile(r"(linear:)?(-?\d+(?:\.\d+)?(?:e-?\d+)?)\.\.(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.I)


def parse_axes(axes: Iterable[str]) -> dict[str, Any]:
    """``optimizer.learning_rate=1e-3,3e-3`` as ``{"optimizer.learning_rate": [0.001, 0.003]}``.

    Values are JSON where they parse as JSON, else texts; a JSON list is the values themselves. ``1e-4..1e-2`` is a
    range on a logarithmic scale, ``linear:0..100`` one of equal steps, of whole numbers if both ends are.
    """
    found: dict[str, Any] = {}
    for axis in axes:
        name, separator, text = axis.partition("=")
        if not separator or not name.strip() or not text.strip():
            raise BadParameter(f"{axis!r} is not of the form name=value,value.", param_hint="--axis")
        if name.strip() in found:
            raise BadParameter(f"{name.strip()!r} is given twice; give all its values at once.", param_hint="--axis")
        found[name.strip()] = _values(text.strip())
    return found


def parse_variants(variants: Iterable[str]) -> list[Any]:
    """Names, names joined by +, or JSON: an object or a list of them, for variants with options."""
    return [_value(each) if each.strip().startswith(("[", "{")) else each.strip() for each in variants]


def parse_whole(text: str, option: str) -> list[int]:
    """``0,1,2`` as numbers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadParameter(f"{text!r} is no list of whole numbers such as 0,1,2.", param_hint=option) from None


def _values(text: str) -> Any:
    if text.startswith("["):
        listed = _value(text)
        if isinstance(listed, list):
            return listed
    between = _RANGE.fullmatch(text)
    if between:
        low, high = (json.loads(number) for number in between.group(2, 3))
        whole = isinstance(low, int) and isinstance(high, int)
        return {"low": low, "high": high, "scale": "linear" if between.group(1) else "log", "whole": whole}
    return [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
