"""Which tokenizer ``data.tokenizer`` means for a model and a data set."""

from functools import partial

from transformers import PreTrainedTokenizerFast

from services.contracts.settings import Settings
from services.contracts.sources import parse_dataset_source
from services.contracts.training.tokenizer_choice import require_tokenizer_fits
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
    """The tokenizer of a new run; raises KeyholeError as require_tokenizer_fits and loading do."""
    source = parse_dataset_source(resolved.source)
    if setting == "auto":
        if model_tokenizer is not None:
            return model_tokenizer
        setting = "none" if source.form == "tokens" else f"bpe:{vocabulary_size}"
    require_tokenizer_fits(setting, resolved.source, vocabulary_size)
    if setting == "none":
        return None
    if not setting.startswith("bpe:"):
        taken = tokenizer_of_source(setting, settings)
        require_vocabulary(taken, vocabulary_size, f"The tokenizer of {setting}")
        return taken
    return trained_tokenizer(
        int(setting.removeprefix("bpe:")),
        resolved.identity,
        partial(text_pieces, source, resolved),
        partial(require_unchanged, resolved, settings),
        settings,
    )
