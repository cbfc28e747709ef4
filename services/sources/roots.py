"""Paths that users name must lie below an allowed root, symbolic links followed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import DatasetSource, ModelSource, parse_dataset_source, parse_model_source

Source = TypeVar("Source", ModelSource, DatasetSource)


def model_path(name: str, settings: Settings) -> Path:
    """The folder that ``path:NAME`` means; raises KeyholeError (invalid_source) outside the model roots."""
    return _below(name, model_roots(settings), "KEYHOLE_MODEL_ROOTS")


def model_roots(settings: Settings) -> tuple[Path, ...]:
    return settings.model_roots or (settings.home / "models",)


def data_path(name: str, settings: Settings) -> Path:
    """The file that ``file:NAME`` or ``tokens:NAME`` means; raises KeyholeError outside the data roots."""
    return _below(name, settings.data_roots or (settings.home / "data",), "KEYHOLE_DATA_ROOTS")


def pinned_source(source: Source, path: Path) -> Source:
    """``source`` by its resolved path; raises KeyholeError (invalid_source) if that path cannot be written as one.

    A link may lead to a name that a source cannot hold: the worker would read another source out of the text.
    """
    pinned = source.model_copy(update={"name": str(path)})
    parse = parse_model_source if isinstance(source, ModelSource) else parse_dataset_source
    try:
        str(pinned).encode()
        same = parse(str(pinned)) == pinned
    except (KeyholeError, UnicodeEncodeError):
        same = False
    if same:
        return pinned
    raise KeyholeError(
        ErrorCode.INVALID_SOURCE,
        f"{source.name!r} leads to {str(path)!r}, a name that cannot stand in a source.",
        "Rename it: no question mark, control character, space at an end, or bytes that are no UTF-8.",
    )


def _below(name: str, roots: Sequence[Path], variable: str) -> Path:
    """Resolve ``name``, a relative one against each root; nothing is said of what exists outside them."""
    inside = []
    for root in roots:
        resolved_root = root.expanduser().resolve()
        try:
            resolved = (resolved_root / name).resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long
            continue
        if resolved.is_relative_to(resolved_root):
            inside.append(resolved)
    for resolved in inside:
        if resolved.exists():
            return resolved
    if inside:
        return inside[0]
    allowed = ", ".join(str(root.expanduser().resolve()) for root in roots)
    raise KeyholeError(
        ErrorCode.INVALID_SOURCE,
        f"{name!r} is not below an allowed folder ({allowed}).",
        f"Move it there, or add its folder to {variable} (separated by colons) for the API and the workers.",
    )
