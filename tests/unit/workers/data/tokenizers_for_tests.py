"""Small tokenizers made in place: one token a byte, and byte-pair encoding trained on a little text."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SEPARATOR = "<|endoftext|>"


def byte_tokenizer(separator: bool = True) -> PreTrainedTokenizerFast:
    """Token id = byte value in GPT-2's spelling order; 256 is the separator, if there is one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if separator:
        backend.add_special_tokens([SEPARATOR])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def bpe_tokenizer(text: str, size: int = 600) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)
