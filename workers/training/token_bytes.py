"""How many bytes of text a token stands for, so that losses of different tokenizers compare: bits per byte."""

import numpy as np
from jaxtyping import Int64
from transformers import PreTrainedTokenizerFast

from workers.data.vocabulary import byte_of_character

_SPACE = "▁"  # how SentencePiece writes a space


def bytes_of_tokens(tokenizer: PreTrainedTokenizerFast, size: int) -> Int64[np.ndarray, " token"] | None:
    """UTF-8 bytes of each token id below ``size``; 0 for special tokens, which are no text, and for ids without token.

    None for tokenizers that are neither byte-level nor SentencePiece: only of those a token's spelling tells.
    """
    decoder = str(tokenizer.backend_tokenizer.decoder)
    if "ByteLevel" in decoder:
        characters = byte_of_character()
    elif "Metaspace" in decoder or "ByteFallback" in decoder:
        characters = None
    else:
        return None
    added = tokenizer.added_tokens_decoder
    lengths = np.zeros(size, np.int64)
    for name, token_id in tokenizer.get_vocab().items():
        if token_id >= size:
            continue
        if token_id in added:
            lengths[token_id] = 0 if added[token_id].special else len(name.encode())
        elif characters is not None and all(character in characters for character in name):
            lengths[token_id] = len(name)
        elif characters is None and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            lengths[token_id] = 1
        else:
            lengths[token_id] = len(name.replace(_SPACE, " ").encode())
    return lengths
