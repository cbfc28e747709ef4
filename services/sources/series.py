"""Series of models by one source: hub revisions that match a pattern, the folders in a folder, a run's checkpoints."""

import fnmatch
import re
from pathlib import Path

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_model_source
from services.contracts.suites import MOST_MODELS
from services.sources import hub
from services.sources.roots import model_path
from services.sources.untrusted import untrusted

_WILD = re.compile(r"[*?\[]")


def is_series(source: str) -> bool:
    """Whether the source names several models: a run, or a pattern after ``@`` of a hub model or at a path's end."""
    form, _, rest = source.strip().partition(":")
    if form == "run":
        return "@" not in rest
    if form == "hf":
        return bool(_WILD.search(rest.partition("@")[2]))
    return form == "path" and rest.endswith("/*")


def models_of(source: str, settings: Settings) -> list[str]:
    """The models of a series in the order of the numbers in their names; a plain source as it is.

    A run's checkpoints are in the database, and so for the API to name: here a run is invalid_source.
    Raises KeyholeError: invalid_source, model_not_found (nothing matches), invalid_request (too many), unavailable.
    """
    found = models_so_far(source, settings)
    if not found:
        raise KeyholeError(
            ErrorCode.MODEL_NOT_FOUND,
            f"{source!r} matches no model.",
            "A pattern is matched against branches and tags of the repository; a folder must hold folders of models.",
        )
    return found


def models_so_far(source: str, settings: Settings) -> list[str]:
    """As ``models_of``, but none where nothing matches yet: model_not_found tells of repository or folder alone."""
    if not is_series(source):
        return [source]
    form, _, rest = source.strip().partition(":")
    if form == "run":
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"{source!r} is looked up in the database, which is not at hand here.",
            "Name it in a submission.",
        )
    if form == "hf":
        name, _, pattern = rest.partition("@")
        parse_model_source(f"hf:{name}")  # refuses what is no name
        revisions = [revision for revision in hub.revisions(name) if fnmatch.fnmatchcase(revision, pattern)]
        found = [f"hf:{name}@{revision}" for revision in sorted(revisions, key=numbered)]
    else:
        folder = model_path(rest.removesuffix("/*"), settings)
        found = [f"path:{each}" for each in sorted(_models_in(folder), key=lambda each: numbered(each.name))]
    return within_limit(source, found)


def within_limit(source: str, found: list[str]) -> list[str]:
    """The models that a series has; raises KeyholeError (invalid_request) if they are too many for a suite."""
    if len(found) > MOST_MODELS:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"{source!r} matches {len(found)} models; a suite takes {MOST_MODELS}.",
            "Narrow the pattern, such as @step1*000, or name some checkpoints of a run, such as run:1@1000.",
        )
    return found


def numbered(name: str) -> list[tuple[int, str]]:
    """A sorting key by which step9 comes before step10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _models_in(folder: Path) -> list[Path]:
    with untrusted(f"The folder {folder}", ErrorCode.MODEL_NOT_FOUND, "Check that it is there and can be read."):
        return [each for each in folder.iterdir() if (each / "config.json").is_file()]
