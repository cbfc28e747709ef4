"""Whether ``data.tokenizer`` can be of a data set and a model: looked at at submission, and again by the worker."""

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.sources import parse_dataset_source
from services.contracts.training.training import LEAST_TOKENS


def require_tokenizer_fits(setting: str, dataset: str, vocabulary_size: int | None) -> None:
    """Raise KeyholeError (dataset_invalid, invalid_request, tokens_out_of_range) for what cannot be.

    ``dataset`` is its source; no ``vocabulary_size`` where the model's configuration does not tell it.
    """
    of_tokens = parse_dataset_source(dataset).form == "tokens"
    if setting == "none" and not of_tokens:
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{dataset} is text, and data.tokenizer is none.",
            "Set data.tokenizer to auto or bpe:SIZE, or use tokens:PATH.",
        )
    if not setting.startswith("bpe:"):
        return
    if of_tokens:
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"data.tokenizer is {setting}, and {dataset} has no text to train it on.",
            "Set data.tokenizer to auto, or to the model source whose tokenizer made the tokens.",
        )
    size = int(setting.removeprefix("bpe:"))
    if vocabulary_size is None or LEAST_TOKENS <= size <= vocabulary_size:
        return
    larger = f"train a model with ?vocabulary={max(size, LEAST_TOKENS)}, as in config:gpt-tiny?vocabulary=…"
    smaller = f"Set data.tokenizer to bpe:SIZE with {LEAST_TOKENS} to {vocabulary_size}, or {larger}."
    raise KeyholeError(
        ErrorCode.TOKENS_OUT_OF_RANGE,
        f"A byte-level tokenizer of {size:,} tokens does not fit: it has at least {LEAST_TOKENS}, and the model "
        f"has {vocabulary_size:,} token ids.",
        smaller if vocabulary_size >= LEAST_TOKENS else f"T{larger[1:]}.",
    )
