"""Presets: suites with a name, one TOML file each below ``presets/``."""

import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.suites import Preset


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, which is folder and file: ``article/figure-1``."""
    found = {}
    for folder in _sorted(files("presets")):
        for file in _sorted(folder) if folder.is_dir() else ():
            if file.name.endswith(".toml"):
                name = f"{folder.name}/{file.name.removesuffix('.toml')}"
                found[name] = Preset.model_validate({"name": name, **tomllib.loads(file.read_text(encoding="utf-8"))})
    return found


def preset_named(name: str) -> Preset:
    """The preset of that name; raises KeyholeError (not_found) that lists them."""
    for preset in presets().values():
        if name in (preset.name, *preset.also):
            return preset
    raise KeyholeError(ErrorCode.NOT_FOUND, f"There is no preset {name!r}.", f"Presets: {', '.join(presets())}.")


def _sorted(folder: Traversable) -> list[Traversable]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)
