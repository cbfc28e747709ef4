"""Tokenizers as tokenizer.json defines them; no class of a model family may rebuild them differently."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError

# what pretraining puts between documents, where the vocabulary has it; instruction-tuned models make another token eos
_DOCUMENT_SEPARATOR = "<|endoftext|>"


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a staged folder; raises KeyholeError (model_refused) if tokenizer.json is broken."""
    with tokenizing("tokenizer.json cannot be read"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # some models' files cut at 512 tokens
    backend.no_padding()
    return tokenizer


@contextmanager
def tokenizing(what: str) -> Iterator[None]:
    """Turn what the tokenizer's library raises, bare Exception and panics, into KeyholeError (model_refused)."""
    try:
        yield
    except (KeyholeError, MemoryError):
        raise
    except BaseException as error:
        # a panic of Rust is no Exception, and its class has no name to import
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise KeyholeError(
            ErrorCode.MODEL_REFUSED, f"{what}: {error}.", "Check that tokenizer.json is whole, and save it again."
        ) from error


def separator_id(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The token put behind each document: <|endoftext|> if there is one, else eos, else bos, else none."""
    token = tokenizer.get_vocab().get(_DOCUMENT_SEPARATOR)
    for candidate in (token, tokenizer.eos_token_id, tokenizer.bos_token_id):
        if isinstance(candidate, int):
            return candidate
    return None


def tokenizer_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Pins what a tokenizer does: its definition and its separator, whatever file it came from."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    return hashlib.sha256(f"{backend.to_str()}\n{separator_id(tokenizer)}".encode()).hexdigest()
