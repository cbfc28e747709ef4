"""The tokenizer of a run: the model's, another model's, or byte-level BPE trained on the data.

Training reads the first TRAINED_CHARACTERS of the data set, of held-out sequences too: where these end is known only
once there is a tokenizer, and what it learns is a vocabulary, not a model. Pieces of words are found as GPT-2's
tokenizer finds them; every byte is a token, so nothing is unknown, and `<|endoftext|>`, id 0, stands behind each
document. Trained twice it is the same, whatever the number of threads.
"""

import fcntl
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings
from services.sources.file_identity import folder_sha256
from services.sources.model_folder import TOKENIZER_FILES
from services.sources.tokenizer_file import vet_tokenizer
from workers.data.pieces import Piece
from workers.models.tokenizer import load_tokenizer

END_OF_TEXT = "<|endoftext|>"
# Measured: 1.6 MB of Python source for each second of CPU time.
TRAINED_CHARACTERS = 1 << 26
_TRAINING = 1  # raised when the same text and size are trained to another tokenizer
_DIGEST = "sha256"
log = logging.getLogger(__name__)


def trained_tokenizer(
    size: int,
    identity: str,
    pieces: Callable[[], Iterator[Piece]],
    unchanged: Callable[[], None],
    settings: Settings,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most ``size`` tokens, fewer where the text has no more pairs, out of the cache or new.

    ``identity`` pins the text that ``pieces()`` gives; ``unchanged()`` raises if it is no longer that.
    """
    key = json.dumps([_TRAINING, version("tokenizers"), identity, size, TRAINED_CHARACTERS])
    folder = settings.cache / "tokenizers" / hashlib.sha256(key.encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # the kernel releases it when its holder dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _sound(folder):
            making = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
            try:
                _train((piece.text for piece in pieces()), size, making)
                unchanged()
                shutil.rmtree(folder, ignore_errors=True)
                making.rename(folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return tokenizer_of(folder)


def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder in the cache; raises KeyholeError (model_refused) if its files are damaged."""
    vet_tokenizer(folder / "tokenizer.json")
    return load_tokenizer(folder)


def tokenizer_files(tokenizer: PreTrainedTokenizerFast, folder: Path) -> dict[str, Path]:
    """Write the files that go with each checkpoint into ``folder``; by name.

    Chat templates, which save_pretrained writes beside them, are no part of a model's identity here, and stay out.
    """
    tokenizer.save_pretrained(folder)
    return {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}


def require_vocabulary(tokenizer: PreTrainedTokenizerFast, vocabulary_size: int, what: str) -> None:
    """Raise KeyholeError (tokens_out_of_range) where a tokenizer has ids that the model has not."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocabulary_size:
        raise KeyholeError(
            ErrorCode.TOKENS_OUT_OF_RANGE,
            f"{what} has token ids up to {largest:,}; the model's are 0 to {vocabulary_size - 1:,}.",
            f"Train a model with ?vocabulary={largest + 1}, e.g. config:gpt-tiny?vocabulary={largest + 1}, or set "
            "data.tokenizer to auto.",
        )


def _train(texts: Iterator[str], size: int, folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_bounded(texts), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, bos_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
    names = list(tokenizer_files(fast, folder))
    (folder / _DIGEST).write_text(folder_sha256(folder, names))


def _bounded(texts: Iterator[str]) -> Iterator[str]:
    left = TRAINED_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _sound(folder: Path) -> bool:
    """Whether the folder is whole: what its maker noted of its files still holds."""
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    try:
        return folder_sha256(folder, names) == (folder / _DIGEST).read_text()
    except FileNotFoundError:
        return False
