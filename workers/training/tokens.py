"""The tokens of a data set: files of token ids mapped, text tokenized into the cache."""

import hashlib
import json
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerFast

from services.contracts.settings import Settings
from services.contracts.sources import parse_dataset_source
from services.sources import ResolvedDataset
from services.sources.token_files import open_token_file
from workers.data.reading import require_unchanged, text_pieces
from workers.data.token_arrays import rows_of
from workers.data.token_cache import PACKING
from workers.data.token_stream import token_stream
from workers.models.tokenizer import tokenizer_sha256
from workers.training.sequences import Part


def token_parts(resolved: ResolvedDataset, length: int) -> list[Part]:
    """The sequences of each token file; none goes from one file into the next."""
    return [Part(path.name, rows_of(open_token_file(path), path, length)) for path in resolved.files]


def text_parts(
    resolved: ResolvedDataset, tokenizer: PreTrainedTokenizerFast, number: int | None, length: int, settings: Settings
) -> list[Part]:
    """The sequences of a text data set's first ``number`` tokens, or of all."""
    token_ids = text_tokens(resolved, tokenizer, number, settings)
    sequences = token_ids.size // length
    return [Part(resolved.source, token_ids[: sequences * length].reshape(sequences, length))]


def text_tokens(
    resolved: ResolvedDataset, tokenizer: PreTrainedTokenizerFast, number: int | None, settings: Settings
) -> np.ndarray:
    """A map of a text data set's first ``number`` tokens, or of all; fewer where it has no more."""
    key = json.dumps([PACKING, resolved.identity, tokenizer_sha256(tokenizer)])
    return token_stream(
        settings.cache / "token-streams" / f"{hashlib.sha256(key.encode()).hexdigest()}.bin",
        partial(text_pieces, parse_dataset_source(resolved.source), resolved),
        tokenizer,
        tokens=number,
        unchanged=partial(require_unchanged, resolved, settings),
    )
