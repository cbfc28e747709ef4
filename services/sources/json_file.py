"""JSON files out of untrusted folders: of bounded size and depth, without duplicate keys."""

import json
from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError


def parse_json_object(data: bytes, what: str, code: ErrorCode = ErrorCode.MODEL_REFUSED) -> dict[str, Any]:
    """A JSON object; a duplicate key is refused, since two readers could take different values."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise KeyholeError(code, f"{what} is not valid JSON: {error}.", "Save the model again.") from error
    if not isinstance(value, dict):
        raise KeyholeError(code, f"{what} holds a {type(value).__name__}, not an object.", "Save the model again.")
    return value


def read_json_object(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object out of a file of at most ``limit`` bytes."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED,
            f"{path.name} is larger than {limit:,} bytes.",
            "Check that it is what its name says.",
        )
    return parse_json_object(data, path.name)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return result
