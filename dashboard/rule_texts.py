"""Rules of watches in words, out of what the database has of them."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from services.contracts.rule_texts import written
from services.contracts.rules import AnyRule, Rule

_RULE: TypeAdapter[AnyRule] = TypeAdapter(Rule)


def rule_text(rule: Mapping[str, Any]) -> str:
    """As the command line takes it; of a rule that this version does not know, its type."""
    try:
        return written(_RULE.validate_python(dict(rule)))
    except ValidationError:
        return str(rule.get("type", "a rule"))
