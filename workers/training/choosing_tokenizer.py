"""Which tokenizer ``data.tokenizer`` means for a model and a data set."""

from functools import partial

from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.contracts.sources import parse_dataset_source
from services.contracts.training.training import LEAST_TOKENS
from services.sources import ResolvedDataset
from workers.data.reading import require_unchanged, text_pieces
from workers.models.tokenizer_source import tokenizer_of_source
from workers.training.tokenizer import require_vocabulary, trained_tokenizer


def choose(
    setting: str,
    resolved: ResolvedDataset,
    *,
    model_tokenizer: PreTrainedTokenizerFast | None,
    vocabulary_size: int,
    settings: Settings,
) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a new run; raises KeyholeError (invalid_request, tokens_out_of_range, as loading a model)."""
    source = parse_dataset_source(resolved.source)
    if setting == "none":
        return None
    if setting == "auto":
        if model_tokenizer is not None:
            return model_tokenizer
        if source.form == "tokens":
            return None
        setting = f"bpe:{vocabulary_size}"
    if not setting.startswith("bpe:"):
        taken = tokenizer_of_source(setting, settings)
        require_vocabulary(taken, vocabulary_size, f"The tokenizer of {setting}")
        return taken
    size = int(setting.removeprefix("bpe:"))
    if source.form == "tokens":
        raise KeyholeError(
            ErrorCode.INVALID_REQUEST,
            f"data.tokenizer is {setting}, and {resolved.source} has no text to train it on.",
            "Set data.tokenizer to auto, or to the model source whose tokenizer made the tokens.",
        )
    if not LEAST_TOKENS <= size <= vocabulary_size:
        larger = f"train a model with ?vocabulary={max(size, LEAST_TOKENS)}, as in config:gpt-tiny?vocabulary=…"
        smaller = f"Set data.tokenizer to bpe:SIZE with {LEAST_TOKENS} to {vocabulary_size}, or {larger}."
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"A byte-level tokenizer of {size:,} tokens does not fit: it has at least {LEAST_TOKENS}, and the model "
            f"has {vocabulary_size:,} token ids.",
            smaller if vocabulary_size >= LEAST_TOKENS else f"T{larger[1:]}.",
        )
    return trained_tokenizer(
        size,
        resolved.identity,
        partial(text_pieces, source, resolved),
        partial(require_unchanged, resolved, settings),
        settings,
    )
