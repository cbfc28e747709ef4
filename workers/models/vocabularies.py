"""Do two models read the same token ids as the same text?"""

import json
from itertools import zip_longest
from typing import Any

from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from workers.models.loaded import LoadedModel


def common_vocabulary(model: LoadedModel, other: LoadedModel, name: str = "the teacher") -> int:
    """How many token ids, counted from 0, both models know; ``name`` is what to call the other one in errors.

    Every id must stand for the same token in both tokenizers, and merges must be the same. Ids without a token (rows
    that pad a model's vocabulary) may be more in one model than in the other: those that the smaller one lacks do not
    count. Where a model has no tokenizer only the sizes can be compared, and must be equal. Raises KeyholeError
    (model_unsupported) that names the first difference.
    """
    sizes = [each.architecture.vocabulary_size for each in (model, other)]
    if model.tokenizer is None or other.tokenizer is None:
        if sizes[0] != sizes[1]:
            lacking = "the model" if model.tokenizer is None else name
            raise _different(
                name,
                f"{lacking} has no tokenizer to compare, and there are {sizes[0]:,} and {sizes[1]:,} token ids",
            )
        return sizes[0]
    found = _difference_of_tokens(model.tokenizer, other.tokenizer) or _difference_of_merges(
        model.tokenizer, other.tokenizer
    )
    if found is not None:
        what, ours, theirs = found
        raise _different(name, f"{what} is {ours} in the model's tokenizer and {theirs} in that of {name}")
    return min(sizes)


Difference = tuple[str, str, str]  # what differs, in the first tokenizer, in the second


def _difference_of_tokens(first: PreTrainedTokenizerFast, second: PreTrainedTokenizerFast) -> Difference | None:
    ours, theirs = (_by_id(tokenizer) for tokenizer in (first, second))
    if ours == theirs:
        return None
    number = min(number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number))
    return f"token {number}", _named(ours.get(number)), _named(theirs.get(number))


def _difference_of_merges(first: PreTrainedTokenizerFast, second: PreTrainedTokenizerFast) -> Difference | None:
    """Merges are the rules that make tokens of smaller ones; tokenizers without such rules have none to compare."""
    for number, (ours, theirs) in enumerate(zip_longest(_merges(first), _merges(second))):
        if ours != theirs:
            return f"merge {number}", _named(ours), _named(theirs)
    return None


def _by_id(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    return {number: token for token, number in tokenizer.get_vocab().items()}


def _merges(tokenizer: PreTrainedTokenizerFast) -> list[Any]:
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"].get("merges") or []


def _named(part: Any) -> str:
    return "missing" if part is None else repr(part)


def _different(name: str, reason: str) -> KeyholeError:
    return KeyholeError(
        ErrorCode.MODEL_UNSUPPORTED,
        f"{name[0].upper()}{name[1:]} does not share the model's tokenizer: {reason}.",
        "Choose models of one family and tokenizer, such as two sizes or two checkpoints of it.",
    )
