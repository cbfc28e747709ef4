"""Pydantic's errors told to a person: where, what, and for a misspelt name the one that was probably meant."""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from services.contracts.jobs import JOB_CREATE
from services.contracts.kinds import KINDS
from services.contracts.printable import NAME_PATTERN
from services.contracts.training.sweep import AS_LIST, AS_RANGE

_NO_FIELDS = ("[key]", AS_LIST, AS_RANGE)  # parts of locations that tell which reading of a field failed


def described(errors: Iterable[Any], body: Any = None) -> list[dict[str, Any]]:
    """One entry per error with ``where`` (dotted), ``message``, ``type`` and ``hint``; inputs are not repeated."""
    return [_broken_json(error, body) if error["type"] == "json_invalid" else _described(error) for error in errors]


def reason_unreadable(error: BaseException) -> tuple[str, str]:
    """(detail, hint) for a body that the JSON parser could not even take for broken JSON."""
    if isinstance(error, UnicodeDecodeError):
        return f"The body is not UTF-8: byte {error.start} is no character.", "Encode the JSON as UTF-8."
    if isinstance(error, RecursionError):
        return "The body is nested too deeply.", "No field is nested more than three levels deep."
    if isinstance(error, ValueError):
        return "The body has a number of too many digits.", "Ranges of the fields: GET /v1/kinds and /docs."
    return "The body could not be read to its end.", "Send it again."


def _broken_json(error: dict[str, Any], body: Any) -> dict[str, Any]:
    position = error["loc"][-1]
    where = f"character {position}"
    if isinstance(body, str) and isinstance(position, int):
        line, column = body.count("\n", 0, position) + 1, position - body.rfind("\n", 0, position)
        where = f"line {line}, column {column}"
    return {
        "in": "body",
        "where": "body",
        "message": f"This is not JSON: {error['ctx']['error'][:1].lower()}{error['ctx']['error'][1:]} at {where}",
        "type": error["type"],
        "hint": "Names and texts stand in double quotes, and nothing follows the last value.",
    }


def _described(error: dict[str, Any]) -> dict[str, Any]:
    location = list(error["loc"])
    place, *path = location or ["body"]
    kind = path[0] if place == "body" and path and path[0] in JOB_CREATE else None
    path = path[1:] if kind else path
    last = len(path) - 1 if error["type"] == "extra_forbidden" else len(path)  # a field may have any name
    names = [str(part) for index, part in enumerate(path) if index == last or part not in _NO_FIELDS]
    entry = {
        "in": str(place),
        "where": ".".join(names) or str(place),
        "message": error["msg"].removeprefix("Value error, "),
        "type": error["type"],
        "hint": "",
    }
    told_by = str(error.get("ctx", {}).get("discriminator", "")).strip("'")
    if error["type"] == "union_tag_invalid" and told_by != "kind":
        context = error["ctx"]
        tag, expected = str(context["tag"]), [each.strip(" '") for each in context["expected_tags"].split(",")]
        entry |= {
            "message": f"{told_by} is {tag[:100]!r}.",
            "hint": f"{_suggestion(tag, expected)}Valid ones: {', '.join(expected)}.",
        }
    elif error["type"] == "union_tag_not_found" and told_by != "kind":
        entry |= {"message": f"The field {told_by} is missing."}
    elif error["type"] == "union_tag_invalid":
        tag = str(error.get("ctx", {}).get("tag", ""))
        entry |= {
            "where": "kind",
            "message": f"There is no job kind {tag[:100]!r}.",
            "hint": f"{_suggestion(tag, KINDS)}Valid kinds: {', '.join(KINDS)}.",
        }
    elif error["type"] == "union_tag_not_found":
        entry |= {"where": "kind", "message": "The field kind is missing.", "hint": f"Valid kinds: {', '.join(KINDS)}."}
    elif isinstance(given := error.get("input"), float) and not math.isfinite(given):  # NaN is on no side of a bound
        entry["message"] = f"A finite number is expected, not {given}."
    elif error["type"] == "string_pattern_mismatch" and error.get("ctx", {}).get("pattern") == NAME_PATTERN:
        entry |= {
            "message": "The text has control characters.",
            "hint": "Leave out line breaks, tabs, and other characters that are not shown but obeyed.",
        }
    elif error["type"] in ("model_attributes_type", "model_type", "dict_type"):
        entry["message"] = "A JSON object {…} is expected."
    elif error["type"] == "extra_forbidden":
        known = error.get("ctx", {}).get("known") or _fields(kind, names[:-1])
        what = "query parameter" if place == "query" else "field"
        entry["message"] = f"There is no {what} {names[-1][:100]!r}." if names else "Unknown field."
        entry["hint"] = error.get("ctx", {}).get("hint", "")
        if known:
            entry["hint"] = f"{_suggestion(names[-1], known)}Valid names: {', '.join(known)}."
    return entry


def _fields(kind: str | None, path: Sequence[str]) -> list[str]:
    """Names allowed at ``path`` below the submission body of ``kind``; empty when not known."""
    model: Any = JOB_CREATE.get(kind or "")
    for name in path:
        field = model.model_fields.get(name) if model else None
        annotation = field.annotation if field else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return list(model.model_fields) if model else []


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""
