"""Vetting of tokenizer.json: the library that reads it aborts the process on ids it cannot make a table for."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from services.contracts.errors import ErrorCode, KeyholeError
from services.sources.file_identity import stamp
from services.sources.json_file import read_json_object

TOKENIZER_LIMIT = 64 << 20  # bytes; those of vocabularies with 262,144 tokens have about 33 MB
# Ids need not be without gaps, but a table of all ids up to the largest is made: four times the tokens there are, and
# some more, are allowed. Assumed; known tokenizers leave no more than some hundred ids out.
_SPREAD = 4
_SPARE_IDS = 65_536
# A normalizer may replace a character by several, and another each of those again. Known ones at most triple a text.
MOST_GROWTH = 64


def vet_tokenizer(path: Path) -> None:
    """Refuse ids far beyond the number of tokens and normalizers that inflate; raises KeyholeError (model_refused)."""
    _vet(path, stamp(path))


@lru_cache(maxsize=64)
def _vet(path: Path, _stamp: tuple[int, ...]) -> None:
    content = read_json_object(path, TOKENIZER_LIMIT)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise _refused(f"{path.name} has added_tokens that are no list of tokens.")
    ids = {str(token.get("content")): token.get("id") for token in added}
    if isinstance(vocabulary, dict):
        ids |= vocabulary
    entries = len(ids) + (len(vocabulary) if isinstance(vocabulary, list) else 0)  # a list numbers its tokens itself
    for token, token_id in ids.items():
        require_plausible_id(token_id, entries, f"{path.name} gives the token {token[:60]!r}")
    growth = _growth(content.get("normalizer"))
    if growth > MOST_GROWTH:
        raise _refused(
            f"The normalizer of {path.name} may make a text {growth:,} times as long; {MOST_GROWTH} is read."
        )


def require_plausible_id(token_id: Any, tokens: int, where: str) -> None:
    """Refuse what is no token id, or one far beyond the number of tokens."""
    limit = _SPREAD * tokens + _SPARE_IDS
    if type(token_id) is not int or not 0 <= token_id < limit:
        raise _refused(f"{where} the id {token_id!r}; with {tokens:,} tokens, ids are read from 0 to {limit - 1:,}.")


def _growth(normalizer: Any) -> int:
    """An upper bound of how much longer a text gets by replacements, in characters per character."""
    if not isinstance(normalizer, dict):
        return 1
    inner = normalizer.get("normalizers")
    if isinstance(inner, list):
        return math.prod(_growth(item) for item in inner)
    content = normalizer.get("content")
    return max(1, len(content)) if normalizer.get("type") == "Replace" and isinstance(content, str) else 1


def _refused(message: str) -> KeyholeError:
    return KeyholeError(ErrorCode.MODEL_REFUSED, message, "Save the tokenizer again.")
