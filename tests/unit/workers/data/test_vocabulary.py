"""The text of a token is what it adds to the text of a sequence."""

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.unit.workers.data.tokenizers_for_tests import bpe_tokenizer, byte_tokenizer
from workers.data import vocabulary_texts
from workers.models import LoadedModel


def test_texts_of_ascii_tokens_join_to_the_text() -> None:
    text = "Hello  world,\n\tthe theatre of the hello world.\r\n" * 20
    tokenizer = bpe_tokenizer(text)
    texts = vocabulary_texts(tokenizer)
    assert len(texts) == len(tokenizer)
    assert "".join(texts[token] for token in tokenizer(text).input_ids) == text
    assert " the" in texts


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    tokenizer = byte_tokenizer()
    texts = vocabulary_texts(tokenizer)
    assert [texts[token] for token in tokenizer("é\x00").input_ids] == ["\\xc3", "\\xa9", "\x00"]
    assert texts[256] == "<|endoftext|>"


def test_a_leading_space_of_other_tokenizers_is_kept() -> None:
    backend = Tokenizer(models.WordLevel({"▁the": 0, "the": 1, "<s>": 2}, unk_token="<s>"))
    backend.decoder = decoders.Metaspace()
    assert vocabulary_texts(PreTrainedTokenizerFast(tokenizer_object=backend)) == [" the", "the", "<s>"]


def test_every_token_of_the_builtin_model_has_its_text(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer is not None
    texts = vocabulary_texts(smollm2.tokenizer)
    assert len(texts) == smollm2.architecture.vocabulary_size
    valid = [token for token in range(len(texts)) if "\\x" not in texts[token]]
    assert len(valid) > 48_000
    assert all(texts[token] == smollm2.tokenizer.decode([token]) for token in valid)
