"""Relative paths in sources: what exists in the current folder is meant, as everywhere else on a command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def absolute_sources(value: Any) -> Any:
    """The same for every source within parameters: a teacher, other checkpoints."""
    if isinstance(value, str):
        return absolute_source(value)
    if isinstance(value, Mapping):
        return {name: absolute_sources(part) for name, part in value.items()}
    return [absolute_sources(part) for part in value] if isinstance(value, list | tuple) else value


def absolute_source(source: str) -> str:
    """``path:``, ``file:`` and ``tokens:`` of something in the current folder by its full path; others unchanged.

    A relative path that does not exist here is left to the API, which looks for it below its own allowed folders.
    """
    form, _, rest = source.partition(":")
    name, mark, options = rest.partition("?")
    if form == "path" and name.endswith("/*"):  # the folders in a folder
        name, mark = name.removesuffix("/*"), "/*"
    if form not in ("path", "file", "tokens") or not name or Path(name).is_absolute():
        return source
    try:
        here = Path(name).expanduser()
        return f"{form}:{here.resolve()}{mark}{options}" if here.exists() else source
    except (OSError, RuntimeError, ValueError):  # a name too long, with a NUL, or the home of nobody: the API says so
        return source
